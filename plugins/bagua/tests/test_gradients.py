"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from stratagem_bagua import BaguaStrategy
from torch import nn
from torch.optim import SGD

from stratagem import Runtime
from stratagem.errors import GradientError
from tests.parity.hands_on_rows import OF_GRADIENTS
from tests.support.hands_on import check_rows

LATE = "setup\\(\\) didn't get it"
# A gradient is followed from the first backward on that finds its parameter in the module: head_replaced_in_group.
REFUSED = {
    "pcgrad": "^the gradient of '0.weight' was assigned by your code and differs between ranks",
    "clip_within_no_sync": "^the gradient of '0.weight' was changed before it was averaged over the ranks",
    "shared_trunk": "of Sequential is a parameter of Sequential too",
    "optimizer_afterwards": LATE,
    "optimizer_in_backward": LATE,
}
REFUSED_ASYNC = {**REFUSED, "given_optimizer_stepped": "step the optimizer that setup\\(\\) returned"}


@pytest.mark.parametrize(
    ("strategy", "refused", "options"),
    [("bagua", REFUSED, {}), ("bagua_async", REFUSED_ASYNC, {"warmup_steps": 100})],
)
def test_a_loop_equals_one_process_or_is_refused(
    strategy: str, refused: dict[str, str], options: dict[str, Any]
) -> None:
    check_rows(strategy, OF_GRADIENTS, refused, **options)


def test_sums_are_made_once_or_refused() -> None:
    strategy = BaguaStrategy(average=False)
    runtime = Runtime(strategy=strategy, accelerator="cpu", devices=2)
    right, unsummed, twice = runtime.launch(_sums, quiet=True)
    model = _net()
    for step in range(3):
        for rank in range(2):
            for view in range(2):
                _loss(model, step, view, rank).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    for name, value in model.named_parameters():
        torch.testing.assert_close(right[name], value.detach(), rtol=1e-9, atol=1e-11)
    assert "aren't summed over the ranks" in unsummed
    assert "are summed already" in twice


def _net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def _loss(module: Any, step: int, view: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * view + step)
    whole = torch.randn(6, 4, generator=generator, dtype=torch.float64) * torch.arange(1, 7)[:, None]
    return (module(whole[rank::2]) - 1.0).square().mean()


def _sums(runtime: Any) -> Any:
    def train(in_no_sync: tuple[bool, bool]) -> Any:
        model = _net()
        module, optimizer = runtime.setup(model, SGD(model.parameters(), lr=0.01))
        for step in range(3):
            for view, inside in enumerate(in_no_sync):
                with runtime.no_sync(module) if inside else nullcontext():
                    runtime.backward(_loss(module, step, view, runtime.rank), module)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return {name: value.detach().clone() for name, value in model.named_parameters()}

    found: list[Any] = [train((True, False))]
    for wrong in ((True, True), (False, False)):
        try:
            found.append(train(wrong))
        except GradientError as error:
            found.append(str(error))
    return found
