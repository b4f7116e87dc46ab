"""Stages one after the other on one module, in processes that stay, as every script under torchrun has them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from blocks import Blocks, LateBlocks
from small import Line
from stratagem_testing import StrategySubject

import stratagem

BATCH = 8
OPTIONS = {"timeout_s": 60}


class Stamped(Blocks):
    """Notices whether hooks of its own are still there."""

    calls = 0

    def build(self) -> None:
        super().build()
        self.blocks[1].register_forward_hook(self.count_call)

    def count_call(self, *_: Any) -> None:
        self.calls += 1


def stages_in_a_row(
    subject: StrategySubject, cls: type[Blocks], batch_size: int, **settings: Any
) -> dict[str, Any]:
    module = cls(batch_size=batch_size)
    results: dict[str, Any] = {"classes": [type(each).__name__ for each in module.modules()]}
    subject.trainer(max_steps=4, limit_val_batches=0, **settings).fit(module)
    run = subject.trainer(**settings)
    results["validate"] = run.validate(module)[0]["val_loss"]
    results["test"] = run.test(module)[0]["val_loss"]
    results["predict"] = torch.cat(run.predict(module) or [torch.zeros(0, 1)])
    subject.trainer(max_steps=5, limit_val_batches=0, **settings).fit(module)
    results["last"] = run.validate(module)[0]["val_loss"]
    results["state"] = sorted(module.state_dict())
    results["classes"] = results["classes"] == [type(each).__name__ for each in module.modules()]
    results["calls"] = getattr(module, "calls", 1)
    return results


@cache
def alone(cls: type[Blocks]) -> dict[str, Any]:
    (result,) = StrategySubject("single").run(stages_in_a_row, cls, BATCH)
    return dict(result)


def compare(subject: StrategySubject, cls: type[Blocks] = Blocks, **settings: Any) -> None:
    expected = alone(cls)
    ranks = subject.run(stages_in_a_row, cls, BATCH // subject.world_size)
    for result in ranks:
        for key in ("validate", "test", "last"):
            assert result[key] == pytest.approx(expected[key], abs=1e-5), key
        assert result["state"] == expected["state"]
        assert result["classes"] or cls is LateBlocks
        assert result["calls"] > 0
    torch.testing.assert_close(ranks[0]["predict"], expected["predict"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cls", [Stamped, LateBlocks])
@pytest.mark.parametrize("processes", [1, 2])
def test_fit_validate_test_predict_fit(cls: type[Blocks], processes: int) -> None:
    compare(StrategySubject("fsdp", options=OPTIONS, world_size=processes), cls)


def other_strategy(subject: StrategySubject) -> tuple[str, float, float]:
    module = Line()
    trained = subject.trainer(max_steps=2)
    trained.fit(module)
    try:
        stratagem.Trainer(
            accelerator="cpu", strategy="ddp", devices=2, enable_progress_bar=False, logger=False
        ).validate(module)
    except stratagem.CombinationError as error:
        # What was refused is still there for the strategy that can.
        return (
            str(error),
            trained.validate(module)[0]["val_loss"],
            subject.trainer().validate(Line())[0]["val_loss"],
        )
    return "", 0.0, 0.0


def test_another_strategy_is_refused() -> None:
    for message, trained, untrained in StrategySubject("fsdp", options=OPTIONS, world_size=2).run(
        other_strategy
    ):
        assert "this Line is sharded since the run before, under strategy 'fsdp' in 2 processes" in message
        assert "make a new module and load the checkpoint" in message
        assert trained < untrained


def by_hand(subject: StrategySubject) -> tuple[float, float]:
    """Two runtimes in a row, as in a script."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))

    def train(runtime: Any) -> float:
        model, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), lr=0.1))
        for _ in range(3):
            loss = (model(x) - 1).square().mean()
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return float(loss)

    return subject.runtime().launch(train, quiet=True), subject.runtime().launch(train, quiet=True)


def test_two_runtimes() -> None:
    (expected,) = StrategySubject("single").run(by_hand)
    for losses in StrategySubject("fsdp", options=OPTIONS, world_size=2).run(by_hand):
        assert losses == pytest.approx(expected, abs=1e-5)


def sharded_in_another_way(subject: StrategySubject) -> str:
    module = Blocks(batch_size=4)
    subject.trainer(max_steps=1, limit_val_batches=0).fit(module)
    other = StrategySubject(
        "fsdp", options={"sharding_strategy": "NO_SHARD"}, world_size=2, folder=subject.folder
    )
    try:
        other.trainer().validate(module)
    except stratagem.CombinationError as error:
        return str(error) if subject.trainer().validate(module)[0]["val_loss"] else ""
    return ""


def test_another_way_of_sharding_is_refused() -> None:
    for message in StrategySubject("fsdp", options=OPTIONS, world_size=2).run(sharded_in_another_way):
        assert "was sharded in another way in the run before" in message
