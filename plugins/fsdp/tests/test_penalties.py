"""Parameters used outside of their block, and gradients of gradients: plain torch's numbers, or a sentence."""

from __future__ import annotations

import pytest
import torch
from small import Line
from stratagem_testing import StrategySubject
from stratagem_testing.strategies.penalties import results_of
from torch import nn

from stratagem import ConfigError


def subject(**options: object) -> StrategySubject:
    return StrategySubject("fsdp", options={"timeout_s": 60, **options}, world_size=2)


def test_one_unit_computes_them_all() -> None:
    assert results_of(subject(auto_wrap_policy=[])) == {}


def test_blocks_refuse_gradients_of_gradients_alone() -> None:
    refusals = results_of(subject())
    assert list(refusals) == ["gradient penalty"]
    message = refusals["gradient penalty"]
    assert message.startswith("ShardedUseError: ")
    assert "parameters of the blocks 'net.blocks.0', 'net.blocks.1' were used" in message
    assert "auto_wrap_policy=[]" in message


class Complex(Line):
    """A complex parameter, alone in its layer or beside real ones."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.phases = nn.ModuleList([Phase()]) if apart else Phase()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        phase = self.phases[0] if isinstance(self.phases, nn.ModuleList) else self.phases
        output: torch.Tensor = phase(super().forward(x))
        return output


class Phase(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.turn).real.mean(1, keepdim=True)


def fit_complex(trying: StrategySubject, apart: bool) -> tuple[str, float]:
    module = Complex(apart)
    run = trying.trainer(max_steps=4, max_epochs=1, limit_val_batches=0)
    try:
        run.fit(module)
    except ConfigError as error:
        return str(error), 0.0
    return "", trying.trainer().validate(module)[0]["val_loss"]


def test_complex_beside_real_parameters() -> None:
    for message, _ in subject().run(fit_complex, False):
        assert message.startswith("'layer.weight' is torch.float32 and 'phases.turn' is torch.complex64, and")


def test_complex_parameters_in_a_unit_of_their_own() -> None:
    ((_, expected),) = StrategySubject("single").run(fit_doubled, True)
    for message, loss in subject().run(fit_complex, True):
        assert message == ""
        assert loss == pytest.approx(expected, abs=1e-5)


def fit_doubled(trying: StrategySubject, apart: bool) -> tuple[str, float]:
    """In one process: batches of twice the size."""
    module = Complex(apart)
    module.batch_size = 8
    run = trying.trainer(max_steps=4, max_epochs=1, limit_val_batches=0)
    run.fit(module)
    return "", trying.trainer().validate(module)[0]["val_loss"]
