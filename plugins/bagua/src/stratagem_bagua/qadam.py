"""Adam's momenta averaged in 8 bits: qadam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets
from stratagem_sharding.drifting import Tensors
from stratagem_sharding.mean_exchange import MeanExchange, Residuals
from stratagem_sharding.own_part import OwnPart
from torch import nn

from stratagem import CheckpointReader, ConfigError, SetupRequest
from stratagem_bagua.gradients import GradientPrepared, any_gradients, as_real
from stratagem_bagua.qadam_optimizer import QAdamOptimizer


class QAdamPrepared(GradientPrepared):
    """Averages gradients through the warm-up, and after it momenta, in 8 bits.

    1-bit Adam (Tang et al., https://arxiv.org/abs/2102.02888), algorithm 1, with Bagua's 8 bits instead of one: each
    rank moves the momentum that all have by its own gradients, the ranks' momenta are averaged in 8 bits, and what
    rounding loses, on its way there and on its way back, is added to what is sent next.

    Args:
        request: as everywhere. Collective.

    Raises:
        ConfigError: an optimizer that isn't a `QAdamOptimizer`.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request, in_bytes=False, average=True)
        self._rank = request.collectives.rank
        self._steppers = [_checked(optimizer) for optimizer in self.optimizers]
        self._momenta = [MomentumExchange(optimizer, self._names) for optimizer in self._steppers]
        for optimizer, momenta in zip(self._steppers, self._momenta):
            if self.world_size > 1:
                optimizer.exchange = momenta

    def synchronised(self) -> list[nn.Parameter]:
        # Of the others, momenta are averaged in the step.
        late = {id(parameter) for optimizer in self._steppers for parameter in _past_warmup(optimizer)}
        return [p for p in super().synchronised() if id(p) not in late]

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        if self.world_size > 1:
            any_gradients(_past_warmup(self._steppers[index]), self.device)
        return super().step(index, closure)

    def release(self) -> None:
        super().release()
        for optimizer in self._steppers:
            optimizer.exchange = None  # the process group ends
        del self._momenta

    # Checkpoint ---------------------------------------------------------------------------------

    def optimizer_tensors(self) -> Tensors:
        tensors = super().optimizer_tensors()
        for index, momenta in enumerate(self._momenta):
            tensors.update({f"{self._own}{index}/{name}": value for name, value in momenta.tensors().items()})
        return tensors

    def state(self) -> dict[str, Any]:
        return {**super().state(), "bagua": {"residuals_of": [momenta.names for momenta in self._momenta]}}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        names = state.get("bagua", {}).get("residuals_of", [])
        if model_only or reader.world_size != self.world_size:
            names = []
        for index, momenta in enumerate(self._momenta):
            saved = names[index] if index < len(names) else []
            own = OwnPart(reader, f"{self._own}{index}/").read_all() if saved else {}
            momenta.restore(saved, {name: value.to(self.device) for name, value in own.items()})

    @property
    def _own(self) -> str:
        return f"bagua/rank{self._rank}/residuals/"

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.original_module.named_parameters()}


class MomentumExchange:
    """Makes momenta of one optimizer their mean over ranks, in 8 bits.

    Args:
        optimizer: whose states have the momenta.
        names: returns id(parameter) → name, as they are now.
    """

    def __init__(self, optimizer: QAdamOptimizer, names: Callable[[], Mapping[int, str]]) -> None:
        self._optimizer, self._names_now = optimizer, names
        self.names: list[str] = []
        """Names of the parameters with residuals, in the order in which they are sent."""
        self._residuals: list[Residuals] = []
        """One per bucket."""

    def __call__(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average the momenta of `parameters`, the same on all ranks. Collective."""
        known = self._names_now()
        names = [known[id(parameter)] for parameter in parameters]
        if names != self.names:
            self.names, self._residuals = names, []
        momenta = [as_real(self._optimizer.state[parameter]["exp_avg"]) for parameter in parameters]
        for index, flat in enumerate(flattened_buckets(momenta)):
            if index == len(self._residuals):
                self._residuals.append(Residuals())
            flat.copy_(MeanExchange(flat, dist.group.WORLD, "int8", self._residuals[index]).result())

    def tensors(self) -> Tensors:
        """Return this rank's residuals by name."""
        found: Tensors = {}
        for index, residuals in enumerate(self._residuals):
            assert residuals.own is not None
            assert residuals.mean is not None
            found.update({f"{index}/own": residuals.own, f"{index}/mean": residuals.mean})
        return found

    def restore(self, names: Sequence[str], tensors: Tensors) -> None:
        """Restore what `names` and `tensors` were on as many ranks; with nothing in them, begin without."""
        self.names = list(names)
        count = len(tensors) // 2
        self._residuals = [Residuals(tensors[f"{i}/own"], tensors[f"{i}/mean"]) for i in range(count)]


def _past_warmup(optimizer: QAdamOptimizer) -> list[torch.Tensor]:
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if optimizer.is_past_warmup(parameter, group)
    ]


def _checked(optimizer: torch.optim.Optimizer) -> QAdamOptimizer:
    if not isinstance(optimizer, QAdamOptimizer):
        raise ConfigError(
            f'algorithm="qadam" steps stratagem_bagua.QAdamOptimizer alone, and the optimizer is '
            f"{type(optimizer).__name__}: write QAdamOptimizer(parameters, lr=…, warmup_steps=…) in its place, or "
            'choose algorithm="bytegrad", which takes any'
        )
    return optimizer
