"""`Session`: the live objects of a run in one worker, from the first collective to the last."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable
from weakref import WeakKeyDictionary

import torch

from stratagem.errors import CombinationError, DigestMismatchError
from stratagem.requests import CheckpointRequest, PrecisionRequest, ReduceRequest, SetupRequest

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.prepared import Prepared
    from stratagem.run import Run

_IN_PIECES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Modules of which earlier sessions of this process left only its pieces → by which strategy."""


class Session:
    """Opens device, process group, precision and checkpointer, in this order. Collective.

    Args:
        run: assembled in this process.

    Raises:
        DigestMismatchError: another rank runs other components or versions.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        run.strategy.setup_environment()
        self.device = run.device()
        run.accelerator.set_up(self.device)
        self.collectives = run.hooks.reduce(
            ReduceRequest(run.environment, self.device, run.accelerator, run.process_devices())
        )
        _compare_ranks(run, self.collectives.gather_objects((run.digest(), run.versions())))
        self.precision = run.hooks.precision(
            PrecisionRequest(run.precision, run.create_precision, self.device, run.accelerator)
        )
        self.checkpointer = run.hooks.checkpoint(CheckpointRequest(run.create_checkpointer, self.collectives))
        self._prepared: list[Prepared] = []

    def prepare(
        self,
        module: nn.Module,
        plain: nn.Module,
        make_optimizers: Callable[[], Sequence[Optimizer]],
        **how: Any,
    ) -> Prepared:
        """Ask the `setup` hook. Collective. `how` are the further fields of `SetupRequest`.

        Raises:
            CombinationError: a run before this one left the module in pieces.
        """
        if plain in _IN_PIECES:
            raise CombinationError(
                f"this {type(plain).__name__} is in pieces since the run before, under {_IN_PIECES[plain]}, and "
                "can't be set up again in the same processes: make a new one and load the checkpoint of that run, as "
                "in trainer.validate(Net(), loader, ckpt_path=...)"
            )
        prepared = self.run.hooks.setup(
            SetupRequest(
                module=module,
                plain=plain,
                make_optimizers=make_optimizers,
                device=self.device,
                collectives=self.collectives,
                precision=self.precision,
                devices=self.run.process_devices(),
                log_level=self.run.config.log_level,
                **how,
            )
        )
        self._prepared.append(prepared)
        return prepared

    def close(self, failed: bool = False) -> None:
        """Release what was prepared, leave the process group, undo the environment. Collective.

        Args:
            failed: this rank is ending with an exception: don't wait for the others.
        """
        while self._prepared:
            prepared = self._prepared.pop()
            prepared.release()
            if prepared.leaves_pieces:
                _IN_PIECES[prepared.plain] = f"strategy {self.run.strategy_name!r}"
        self.collectives.close(failed)
        self.run.strategy.teardown()


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on every device of this process."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _compare_ranks(run: Run, gathered: list[tuple[str, dict[str, str]]]) -> None:
    first_digest, first = gathered[0]
    for rank, (digest, versions) in enumerate(gathered):
        if digest == first_digest:
            continue
        differing = sorted(key for key in {*first, *versions} if first.get(key) != versions.get(key))
        raise DigestMismatchError(
            f"rank {rank} doesn't run what rank 0 runs: "
            + "; ".join(
                f"{key} is {versions.get(key)} there and {first.get(key)} on rank 0" for key in differing
            )
            + "; install the same versions on every node"
        )
