"""What one rank's step does that the others' don't: a sentence within seconds, or the right numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import stratagem_ddp.tracked
import torch
from stratagem_ddp import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import StratagemError


class Experts(stratagem.Module):
    """Two experts; `step` says what a rank does in a batch."""

    def __init__(self, step: Callable[[Experts, int, int], Tensor | None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))
        self.frozen = nn.Linear(3, 1).requires_grad_(False)
        self.step = step

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return self.step(self, batch_idx, self.global_rank)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def x(batch: int, rank: int) -> Tensor:
    return torch.full((2, 3), float(1 + batch + 10 * rank))


def one_each(module: Experts, batch: int, rank: int) -> Tensor:
    return module.experts[(batch + rank) % 2](x(batch, rank)).mean()


def both(module: Experts, batch: int, rank: int) -> Tensor:
    return sum(expert(x(batch, rank)).mean() for expert in module.experts)


def none_later(module: Experts, batch: int, rank: int) -> Tensor | None:
    return None if batch == 2 and rank == 1 else both(module, batch, rank)


def unfreezes_within(module: Experts, batch: int, rank: int) -> Tensor:
    module.frozen.requires_grad_(batch == 1)
    loss = both(module, batch, rank) + module.frozen(x(batch, rank)).mean()
    module.frozen.requires_grad_(False)
    return loss


class UnfreezeOnOne(stratagem.Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and module.global_rank == 1:
            module.frozen.requires_grad_(True)


class Ignoring(Experts):
    _ddp_params_and_buffers_to_ignore = ("experts.0.weight",)


def fit(
    step: Any, *callbacks: Any, cls: Any = Experts, start_method: str = "fork", **options: Any
) -> Experts:
    module: Experts = cls(step)
    stratagem.Trainer(
        strategy=DDPStrategy(start_method=start_method, **options),
        accelerator="cpu",
        devices=2,
        max_steps=4,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    ).fit(module, DataLoader(range(16)))
    return module


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"step": one_each}, "doesn't depend on 'experts.*ddp_find_unused_parameters_true"),
        ({"step": none_later, "static_graph": True}, "training_step returned None, and static_graph=True"),
        (
            {"step": unfreezes_within},
            "'frozen.weight', 'frozen.bias' required no gradients when the step began",
        ),
        ({"step": both, "cls": Ignoring}, "experts.0.weight.*leave the attribute out"),
    ],
    ids=["experts", "static_graph", "within the step", "ignored"],
)
def test_refused_in_a_sentence(how: dict[str, Any], words: str) -> None:
    # Ranks that waited for each other would do so for 30 minutes.
    with pytest.raises(StratagemError, match=words):
        fit(**how)


def test_a_rank_that_alone_unfreezes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_ddp.tracked, "WAIT_S", 3.0)
    with pytest.raises(
        StratagemError, match=r"'frozen.weight' has become True on rank 1 and has not changed on r"
    ):
        fit(both, UnfreezeOnOne())


def test_experts_of_several_ranks_train_with_unused_parameters_found() -> None:
    module = fit(one_each, find_unused_parameters=True)
    torch.manual_seed(0)
    experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.1, momentum=0.9)
    for batch in range(4):
        total = sum(experts[(batch + rank) % 2](x(batch, rank)).mean() for rank in range(2)) / 2
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    for ours, theirs in zip(module.experts.parameters(), experts.parameters()):
        torch.testing.assert_close(ours, theirs)


def squares(module: Experts, batch: int, rank: int) -> Tensor:
    return both(module, batch, rank).square()


def test_the_state_of_torchs_power_sgd_reaches_workers() -> None:
    state = PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=1)
    how = {"ddp_comm_hook": powerSGD_hook, "ddp_comm_state": state}
    forked, served = fit(squares, **how), fit(squares, start_method="forkserver", **how)
    for ours, theirs in zip(served.parameters(), forked.parameters()):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
