"""`BaguaStrategy`: the algorithms of Bagua, which no longer installs itself, on torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stratagem_sharding.untrained_replica import UntrainedReplica

from stratagem import (
    Capabilities,
    ConfigError,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_bagua.asynchronous import AsyncPrepared
from stratagem_bagua.decentralized import DecentralizedPrepared, LowPrecisionDecentralizedPrepared
from stratagem_bagua.gradients import GradientPrepared
from stratagem_bagua.qadam import QAdamPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions
    from stratagem.sdk.runs import Run

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "gradient_allreduce": {"average": True},
    "bytegrad": {"average": True},
    "decentralized": {"peer_selection_mode": "all", "communication_interval": 1},
    "low_precision_decentralized": {"communication_interval": 1},
    "qadam": {},
    "async": {"peer_selection_mode": "all", "sync_interval_ms": 500, "warmup_steps": 0},
}
"""Algorithm → its settings, by Bagua's names, and their values when not given."""
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
DRIFTING = ("decentralized", "low_precision_decentralized", "async")
"""Algorithms under which replicas differ."""


class BaguaStrategy(ProcessGroupStrategy):
    """Bagua's algorithms (https://arxiv.org/abs/2107.01499), on one node or several.

    Args:
        algorithm: "gradient_allreduce", "bytegrad", "decentralized", "low_precision_decentralized", "qadam", which
            steps `stratagem_bagua.QAdamOptimizer` alone, or "async".
        flatten: send tensors in flat buckets, which is always so.
        hierarchical: reduce within nodes first, which isn't built: False or left out.
        average: of gradients, the mean over ranks; False sums them. For gradient_allreduce and bytegrad.
        peer_selection_mode: for decentralized: average with "all" ranks, or by "shift_one" with one, another one
            each time. "all" for async.
        communication_interval: for decentralized and low_precision_decentralized: optimizer steps from one
            message to the next.
        sync_interval_ms: for async: milliseconds from one average's arrival to the next one's beginning; 500.
        warmup_steps: for async: optimizer steps at first that average gradients; 0. That of qadam is an argument of
            its optimizer.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't one of those above, or a setting that the algorithm doesn't have.
    """

    def __init__(
        self,
        algorithm: str = "gradient_allreduce",
        flatten: bool = True,
        *,
        hierarchical: bool = False,
        average: bool | None = None,
        peer_selection_mode: str | None = None,
        communication_interval: int | None = None,
        sync_interval_ms: int | None = None,
        warmup_steps: int | None = None,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        self.algorithm = algorithm
        if algorithm not in SETTINGS:
            raise ConfigError(f"algorithm={algorithm!r} must be one of {', '.join(SETTINGS)}")
        if hierarchical or not flatten:
            raise ConfigError(
                "hierarchical=True is not available, all ranks talk to each other: leave it out"
                if hierarchical
                else "flatten=False is not available, tensors are always sent in flat buckets: leave it out"
            )
        self.settings = self._checked(
            {
                "average": average,
                "peer_selection_mode": peer_selection_mode,
                "communication_interval": communication_interval,
                "sync_interval_ms": sync_interval_ms,
                "warmup_steps": warmup_steps,
            }
        )

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**SETTINGS[self.algorithm]}
        for name, value in given.items():
            if value is None:
                continue
            if name not in settings:
                has = f"it has {', '.join(settings)}" if settings else "leave it out"
                if (self.algorithm, name) == ("qadam", "warmup_steps"):
                    has = "give it to stratagem_bagua.QAdamOptimizer"
                raise ConfigError(f"algorithm={self.algorithm!r} has no setting {name!r}; {has}")
            settings[name] = value
        modes = ("all",) if self.algorithm == "async" else ("all", "shift_one")
        rules = (
            ("peer_selection_mode", lambda value: value in modes, " or ".join(f'"{mode}"' for mode in modes)),
            ("communication_interval", lambda value: value >= 1, "at least 1 optimizer step"),
            ("sync_interval_ms", lambda value: value >= 1, "at least 1 millisecond"),
            ("warmup_steps", lambda value: value >= 0, "a number of optimizer steps, or 0"),
        )
        for name, is_good, allowed in rules:
            if name in settings and not is_good(settings[name]):
                raise ConfigError(f"{name}={settings[name]!r} must be {allowed}")
        return settings

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """What the algorithm can do.

        Replicas that differ count their own steps. These, and momenta of a rank's own gradients, may not be left out
        by one rank alone as under 16-mixed; and float16 has no room for a variance.
        """
        if self.algorithm == "qadam":
            return replace(declared, precisions=PRECISIONS)
        if self.algorithm not in DRIFTING:
            return declared
        features = declared.features - {"manual_backward"}
        if self.algorithm != "async":  # whose warm-up sends gradients
            features |= {"sparse_gradients"}
        return replace(declared, features=features, precisions=(*PRECISIONS, "16-true"))

    def check_run(self, run: Run) -> None:
        """Refuse an odd number of ranks in pairs."""
        pairs = self.settings.get("peer_selection_mode") == "shift_one"
        if pairs and run.world_size > 1 and (run.world_size % 2 or run.plan.is_elastic):
            raise ConfigError(
                f'peer_selection_mode="shift_one" makes pairs of ranks, and this run has {run.world_size}'
                f'{" or fewer" * run.plan.is_elastic}: choose a fixed even number, or "all"'
            )

    def plan_lines(self) -> Sequence[str]:
        """Say of async what no run of it can promise."""
        if self.algorithm != "async":
            return ()
        settings = self.settings
        begin = f", after {settings['warmup_steps']} steps of warm-up" * (settings["warmup_steps"] > 0)
        return [
            f"replicas train independently, averaged in the background each {settings['sync_interval_ms']} ms{begin}",
            "at which step an average arrives depends on time: no two runs are alike, nor a continued run and one "
            "that was never interrupted",
        ]

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica that is synchronised by the algorithm."""
        settings = self.settings
        if not request.loop.training:
            return UntrainedReplica(request)
        if self.algorithm == "qadam":
            return QAdamPrepared(request)
        if self.algorithm == "async":
            return AsyncPrepared(request, self)
        if self.algorithm not in DRIFTING:
            return GradientPrepared(request, self.algorithm == "bytegrad", settings["average"])
        interval = settings["communication_interval"]
        if self.algorithm == "decentralized":
            return DecentralizedPrepared(request, settings["peer_selection_mode"] == "shift_one", interval)
        return LowPrecisionDecentralizedPrepared(request, interval)
