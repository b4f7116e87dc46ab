"""`GradientReducer`: Horovod averages gradients while backward still computes others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.autograd.graph import get_gradient_edge

from stratagem import ConfigError
from stratagem_horovod.bucket import Bucket, buckets
from stratagem_horovod.engine import Engine

AVERAGING = "averaged gradients"


class GradientReducer:
    """Averages gradients as `hvd.DistributedOptimizer` does, from hooks on parameters, for any number of optimizers.

    Horovod finds messages of different ranks by their names, in whichever order each rank sends them. A rank whose
    backward didn't reach a parameter sends zeros, as DistributedOptimizer does; a parameter that no rank's backward
    reached keeps no gradient, as in one process.

    Args:
        engine: running.
        parameters: of the module, by name; on every rank the same.
        fp16: send float16, as `hvd.Compression.fp16`.

    Attributes:
        is_on: whether a backward runs whose gradients are averaged.
    """

    def __init__(self, engine: Engine, parameters: Mapping[str, nn.Parameter], fp16: bool) -> None:
        self._engine = engine
        self.is_on = False
        self._accumulations: list[Any] = []
        self._buckets: list[Bucket] = []
        name = f"gradients {engine.number()}"
        if engine.hvd.size() > 1:
            self._buckets = list(buckets(engine.hvd, name, parameters, fp16))
        self._handles = [
            self._hook(bucket, *each) for bucket in self._buckets for each in bucket.parameters.items()
        ]

    def finish(self) -> None:
        """Wait until what every rank has is averaged. Collective.

        Raises:
            CollectiveError: another rank has ended, or didn't come within the time limit.
        """
        if not self._buckets:
            return
        try:
            with self._engine.waiting(AVERAGING):
                for bucket in self._buckets:
                    bucket.send()
                for bucket in self._buckets:
                    bucket.take()
        finally:
            for bucket in self._buckets:
                bucket.clear()

    def release(self) -> None:
        """Let go of the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._accumulations.clear()
        self._buckets.clear()

    def _hook(self, bucket: Bucket, name: str, parameter: nn.Parameter) -> Any:
        def note(*_: Any) -> None:
            if not self.is_on or parameter.grad is None:
                return
            try:
                is_first = bucket.add(name)
            except self._engine.hvd.HorovodInternalError as error:
                raise self._engine.failed(AVERAGING, error) from error
            if not is_first:
                raise ConfigError(
                    f"the gradient of {name!r} was computed twice before it was averaged: end the run if a backward "
                    "raises, and give use_reentrant=False to torch.utils.checkpoint.checkpoint"
                )

        flag = parameter.requires_grad
        parameter.requires_grad_(True)  # torch takes no hook without, and the parameter may be unfrozen later
        accumulation = get_gradient_edge(parameter).node
        parameter.requires_grad_(flag)
        self._accumulations.append(accumulation)  # torch doesn't keep it
        # After hooks of the user's own, which may change what has been accumulated.
        return accumulation.register_hook(note)
