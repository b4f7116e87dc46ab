"""What the loop calls per step on IPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stratagem import ConfigError, Prepared, SetupRequest
from stratagem_ipu.program import Program
from stratagem_ipu.refusals import refuse_loop, refuse_optimizer

if TYPE_CHECKING:
    from stratagem import CheckpointReader


class IPUPrepared(Prepared):
    """A module whose training step is one program on IPUs: forward, backward, and plain SGD.

    The user's module stays on the CPU. Its parameters are fetched from the device for evaluations, which run on the
    CPU, for checkpoints and at the end; between these they are the former ones, and there are no gradients.

    Args:
        request: as the `setup` hook received it.
        accumulation: into how many parts an IPU cuts its part of a batch.
    """

    def __init__(self, request: SetupRequest, accumulation: int) -> None:
        replicas = len(request.devices)
        refuse_loop(request, replicas * accumulation)
        assert request.steps is not None
        super().__init__(request)
        (optimizer,) = self.optimizers
        refuse_optimizer(optimizer, request.original_module)
        self._program = Program(
            request.steps.chunk_module,
            request.original_module,
            optimizer,
            replicas,
            accumulation,
            request.config.seed,
        )

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        """Run the whole step; what `step` does afterwards has no gradients here, and changes nothing."""
        return self._program.run(args[1])

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        raise ConfigError("ipu_strategy runs backward within its program: you can't call it yourself")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._program.fetch()
        yield

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._program.fetch()
        return super().model_tensors()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self._program.send()

    def restore_module(self) -> None:
        self._program.fetch()
        super().restore_module()

    def release(self) -> None:
        self._program.close()
        super().release()
