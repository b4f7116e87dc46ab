"""The optimizers and schedules of `HFModule`: those of transformers by name, or made by a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.optim import Optimizer
from transformers.trainer_pt_utils import get_parameter_names

from stratagem.errors import ConfigError, nearest

OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adafactor": transformers.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
_OWN_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "adafactor": {"scale_parameter": False, "relative_step": False},
}
_NOT_DECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Names of parameters that transformers' Trainer doesn't decay, in addition to those of `torch.nn.LayerNorm`."""

SCHEDULES = tuple(each.value for each in transformers.SchedulerType)


@dataclass(frozen=True)
class OptimizerChoice:
    """How to make an optimizer and its schedule, checked."""

    optimizer: str | Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: str | Callable[[Optimizer, int], Any] | None
    lr: float
    weight_decay: float
    warmup_steps: float
    """A number of steps, or below 1 a share of all steps."""

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"HFModule got optimizer={self.optimizer!r}: {nearest(str(self.optimizer), list(OPTIMIZERS))}; or "
                "pass a function that takes the parameters, as lambda parameters: torch.optim.SGD(parameters, 0.1)"
            )
        if not callable(self.schedule) and self.schedule not in (None, *SCHEDULES):
            raise ConfigError(
                f"HFModule got schedule={self.schedule!r}: {nearest(str(self.schedule), list(SCHEDULES))}; or pass "
                "None, or a function that takes the optimizer and the number of all steps"
            )
        for name in ("lr", "weight_decay", "warmup_steps"):
            value = getattr(self, name)
            if not value >= 0:
                raise ConfigError(f"HFModule got {name}={value!r}: give a number that isn't negative")

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of those parameters that are trained, with weight decay where transformers has it."""
        if not isinstance(self.optimizer, str):
            return self.optimizer([each for each in model.parameters() if each.requires_grad])
        make = OPTIMIZERS[self.optimizer]
        arguments = {"lr": self.lr, **_OWN_ARGUMENTS.get(self.optimizer, {})}
        decayed = set(get_parameter_names(model, [nn.LayerNorm], list(_NOT_DECAYED)))
        named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        groups = [
            {"params": [each for name, each in named if name in decayed], "weight_decay": self.weight_decay},
            {"params": [each for name, each in named if name not in decayed], "weight_decay": 0.0},
        ]
        return make([group for group in groups if group["params"]], **arguments)

    def make_schedule(self, optimizer: Optimizer, steps: float) -> Any:
        """Return the scheduler; None where the learning rate stays.

        Args:
            optimizer: whose learning rates it sets.
            steps: of the whole fit; inf where that has no limit.

        Raises:
            ConfigError: the schedule needs a number of steps.
        """
        if self.schedule is None or (self.schedule == "constant" and not self.warmup_steps):
            return None
        if math.isinf(steps):
            raise ConfigError(
                f"HFModule's schedule={self.schedule!r} depends on the number of steps, and this fit has no limit: "
                "give max_epochs or max_steps, or schedule=None"
            )
        if not isinstance(self.schedule, str):
            return self.schedule(optimizer, int(steps))
        warmup = self.warmup_steps if self.warmup_steps >= 1 else math.ceil(steps * self.warmup_steps)
        return transformers.get_scheduler(
            self.schedule, optimizer, num_warmup_steps=int(warmup), num_training_steps=int(steps)
        )
