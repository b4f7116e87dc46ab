"""`DiLoCoStrategy`: replicas on slow links, which agree every n steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.mean_exchange import SENT_AS

from stratagem import (
    ConfigError,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_diloco.outer import OuterSettings
from stratagem_diloco.prepared import DiLoCoPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions


class DiLoCoStrategy(ProcessGroupStrategy):
    """DiLoCo (https://arxiv.org/abs/2311.08105) and Streaming DiLoCo (https://arxiv.org/abs/2501.18512).

    Each replica trains independently with the user's optimizer. Every `sync_every` steps the replicas send how far
    they have gone from the parameters that they last agreed on, and an outer optimizer, SGD with Nesterov momentum,
    takes the mean of that for a gradient. On one node or several; a replica per device.

    Args:
        sync_every: optimizer steps from one outer step to the next; H in the papers.
        outer_lr: learning rate of the outer optimizer; with 1 and no momentum, replicas are averaged.
        outer_momentum: its momentum, from 0 to less than 1.
        outer_nesterov: whether that is Nesterov's; says nothing with `outer_momentum=0`.
        outer_grad_dtype: send outer gradients as "fp16", "bf16" or "int8" (with a scale for each 256 numbers), and
            add them up in float32; in the parameters' own dtype, at least float32, when None.
        fragments: parts of the model that are sent one after the other, evenly over `sync_every` steps.
        overlap_steps: optimizer steps that continue while a fragment is on its way, fewer than `sync_every`.
        mixing: weight of a replica's own parameters when a fragment arrives, from 0 to less than 1; when None,
            0.5 with `overlap_steps` and 0 without.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    def __init__(
        self,
        *,
        sync_every: int = 100,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        outer_nesterov: bool = True,
        outer_grad_dtype: str | None = None,
        fragments: int = 1,
        overlap_steps: int = 0,
        mixing: float | None = None,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        if mixing is None:
            mixing = 0.5 if overlap_steps else 0.0
        self.outer = OuterSettings(
            sync_every,
            outer_lr,
            outer_momentum,
            outer_nesterov,
            outer_grad_dtype,
            fragments,
            overlap_steps,
            mixing,
        )
        self._check()

    def _check(self) -> None:
        outer = self.outer
        rules = (
            ("sync_every", outer.sync_every, outer.sync_every >= 1, "at least 1 optimizer step"),
            ("outer_lr", outer.lr, outer.lr > 0, "greater than 0"),
            ("outer_momentum", outer.momentum, 0 <= outer.momentum < 1, "from 0 to less than 1"),
            (
                "outer_grad_dtype",
                outer.sent_as,
                outer.sent_as is None or outer.sent_as in SENT_AS,
                f"{', '.join(SENT_AS)} or left out",
            ),
            (
                "fragments",
                outer.fragments,
                1 <= outer.fragments <= outer.sync_every,
                f"from 1 to sync_every={outer.sync_every}",
            ),
            (
                "overlap_steps",
                outer.overlap_steps,
                0 <= outer.overlap_steps < outer.sync_every,
                f"from 0 to less than sync_every={outer.sync_every}",
            ),
            ("mixing", outer.mixing, 0 <= outer.mixing < 1, "from 0 to less than 1"),
        )
        for name, value, is_good, allowed in rules:
            if not is_good:
                raise ConfigError(f"{name}={value!r} must be {allowed}")

    def plan_lines(self) -> Sequence[str]:
        """Say how often replicas agree."""
        outer = self.outer
        parts = f", in {outer.fragments} fragments" if outer.fragments > 1 else ""
        return [
            f"replicas train independently, with an outer step every {outer.sync_every} optimizer steps{parts}"
        ]

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica that takes outer steps with the others."""
        if request.loop.training:
            return DiLoCoPrepared(request, self)
        prepared = Prepared(request)
        broadcast_coalesced((*prepared.module.parameters(), *prepared.module.buffers()))
        return prepared
