"""`QAdamOptimizer`: Adam whose variance stays as it is after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem import ConfigError
from stratagem_bagua.gradients import as_real

__all__ = ["QAdamOptimizer"]


class QAdamOptimizer(Optimizer):
    """What `algorithm="qadam"` steps, by the name and with the arguments of Bagua.

    1-bit Adam (Tang et al., https://arxiv.org/abs/2102.02888), algorithm 1. Through the warm-up it is
    `torch.optim.Adam`. After it the variance stays as it is, so that momenta can be averaged over ranks with what
    rounding loses. By itself, in one process, it does the same without ranks.

    A weight whose gradients were next to nothing in the warm-up would be moved by any later one without bounds: after
    it no weight moves further in a step than Adam moves it by its first gradient, by (1 - beta1) / √(1 - beta2)
    learning rates.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: learning rate.
        warmup_steps: of each parameter, at least 1: a fifth of all, say Bagua's authors.
        betas: of the running averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: L2 penalty: adds so much of a parameter to its gradient.

    Raises:
        ConfigError: a value out of its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        rules = (
            ("lr", lr, lr >= 0, "0 or more"),
            ("warmup_steps", warmup_steps, warmup_steps >= 1, "at least 1 optimizer step"),
            ("betas", betas, all(0 <= beta < 1 for beta in betas), "two numbers from 0 to less than 1"),
            ("eps", eps, eps >= 0, "0 or more"),
        )
        for name, value, is_good, allowed in rules:
            if not is_good:
                raise ConfigError(f"QAdamOptimizer has {name}={value!r}, which must be {allowed}")
        defaults = {
            "lr": lr,
            "warmup_steps": warmup_steps,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    exchange: Callable[[Sequence[torch.Tensor]], object] | None = None
    """Called in each step with those of the stepped parameters that are past their warm-up, to make their momenta,
    `state[parameter]["exp_avg"]`, the mean over ranks."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # another Adam's, of a checkpoint, have none
            group.setdefault("warmup_steps", self.defaults["warmup_steps"])

    def is_past_warmup(self, parameter: torch.Tensor, group: dict[str, Any]) -> bool:
        """Whether the next step of a parameter of `group` leaves its variance as it is."""
        state = self.state.get(parameter, {})
        return bool(state.get("step", 0) >= group["warmup_steps"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step by the gradients that are there."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepped = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        late = [parameter for parameter, group in stepped if self.is_past_warmup(parameter, group)]
        for parameter, group in stepped:
            self._accumulate(parameter, group)
        if late and self.exchange is not None:
            self.exchange(late)
        for parameter, group in stepped:
            self._move(parameter, group)
        return loss

    def _accumulate(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        is_late, state = self.is_past_warmup(parameter, group), self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        gradient = parameter.grad
        assert gradient is not None
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        gradient, (beta1, beta2) = as_real(gradient), group["betas"]
        as_real(state["exp_avg"]).lerp_(gradient, 1 - beta1)
        if not is_late:
            as_real(state["exp_avg_sq"]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step, warmup_steps = int(state["step"]), group["warmup_steps"]
        momentum, variance = as_real(state["exp_avg"]), as_real(state["exp_avg_sq"])
        # The variance's correction stays with it: one that continued would let steps grow threefold.
        corrected = (variance.sqrt() / (1 - beta2 ** min(step, warmup_steps)) ** 0.5).add_(group["eps"])
        if step > warmup_steps:
            corrected = torch.maximum(corrected, momentum.abs() * ((1 - beta2) ** 0.5 / (1 - beta1)))
        as_real(parameter).addcdiv_(momentum, corrected, value=-group["lr"] / (1 - beta1**step))
