"""What `fit` leaves in the module of a process whose workers were others: as after a fit in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from stratagem_checkpoint.directory import DirectoryCheckpointer
from stratagem_ddp import DDPStrategy
from torch import nn

import stratagem
from stratagem.errors import CombinationError


class Rich(Line):
    """Has all that a state can have: buffers, a tie, extra state, and what only construction gives a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 1)
        self.tied.weight = self.layer.weight
        self.late = nn.LazyLinear(1)
        self.grown = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(4, 1).requires_grad_(False)
        self.steps = 0

    def configure_model(self) -> None:
        self.late(torch.zeros(1, 4, dtype=self.layer.weight.dtype))
        self.grown.data = torch.zeros(4)

    def forward(self, x: Any) -> Any:
        x = self.norm(x + self.grown)
        return self.layer(x) + self.tied(x) + self.late(x) + self.head(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def get_extra_state(self) -> Any:
        return {"steps": self.steps}

    def set_extra_state(self, state: Any) -> None:
        self.steps = state["steps"]


class Unfreezes(stratagem.Callback):
    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        module.head.weight.requires_grad_(True)


def fit(tmp_path: Path, module: Any, strategy: Any, **how: Any) -> stratagem.Trainer:
    devices = 2 if isinstance(strategy, DDPStrategy) else 1
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        max_steps=3,
        seed=1,
        run_dir=tmp_path / f"{devices}",
        enable_progress_bar=False,
        **{"enable_checkpointing": False, **how},
    )
    trainer.fit(module)
    return trainer


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_a_module_is_left_as_one_process_leaves_it(tmp_path: Path, precision: str) -> None:
    alone, ours = Rich(), Rich()
    kept = {name: parameter for name, parameter in ours.named_parameters() if name != "late.bias"}
    for module, strategy in ((alone, "single"), (ours, DDPStrategy(start_method="fork"))):
        fit(tmp_path, module, strategy, precision=precision, callbacks=Unfreezes(), enable_checkpointing=True)
    expected, got = alone.state_dict(), ours.state_dict()
    assert list(got) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert (name, got[name].dtype, got[name].shape) == (name, value.dtype, value.shape)
    reader = DirectoryCheckpointer(stratagem.LocalCollectives(torch.device("cpu"))).open(
        str(tmp_path / "2" / "checkpoints" / "last")
    )
    saved = {f"model/{n}": torch.empty_like(v) for n, v in got.items() if isinstance(v, torch.Tensor)}
    reader.read(saved)
    assert all(torch.equal(value, got[key.removeprefix("model/")]) for key, value in saved.items())
    assert got["_extra_state"] == expected["_extra_state"] == {"steps": 3}
    assert ours.norm.num_batches_tracked == 3
    assert ours.tied.weight is ours.layer.weight
    assert ours.head.weight.requires_grad
    assert not ours.head.bias.requires_grad
    assert all(dict(ours.named_parameters())[name] is parameter for name, parameter in kept.items())
    assert not torch.equal(ours.late.weight, torch.zeros(1, 4))
    if precision == "64-true":
        assert not torch.equal(ours.layer.weight, ours.layer.weight.float().double())
    # It trains on from there, in this process and in others.
    fit(tmp_path, ours, "single", precision=precision)
    assert ours.steps == 6


class Sealed(DirectoryCheckpointer):
    """Checkpoints that only this process can read."""

    def save(self, path: str, checkpoint: Any) -> None:
        raise AssertionError("saved by the run's checkpointer")

    def open(self, path: str, verify: bool = True) -> Any:
        raise AssertionError("opened by the run's checkpointer")


class Seals:
    @stratagem.hookimpl(wrapper=True)
    def checkpoint(self, request: Any) -> Any:
        yield
        return Sealed(request.collectives)


@pytest.mark.parametrize("where", ["strategy", "extension"])
def test_the_runs_checkpointer_has_no_part_in_it(tmp_path: Path, where: str) -> None:
    module, before = Line(), Line()
    strategy = DDPStrategy(start_method="fork", checkpoint_io=Sealed if where == "strategy" else None)
    fit(tmp_path, module, strategy, plugins=[Seals()] if where == "extension" else [])
    assert not torch.equal(module.layer.weight, before.layer.weight)


class Late(Line):
    """Has its layers in the workers alone."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def configure_model(self) -> None:
        self.layer = nn.Linear(4, 1)


def test_results_that_cannot_be_sent_are_reported_and_not_evaluated(tmp_path: Path) -> None:
    module = Late()
    strategy = DDPStrategy(start_method="fork")
    words = (
        "the trained Late has layer.bias, layer.weight and the one that was passed to fit has nothing instead"
    )
    with pytest.warns(UserWarning, match=words):
        trainer = fit(tmp_path, module, strategy, enable_checkpointing=True)
    with pytest.raises(
        CombinationError, match=r"test got a Late whose trained values stayed .* pass ckpt_path"
    ):
        trainer.test(module)
    with pytest.raises(CombinationError, match="fit got a Late"):
        trainer.fit(module)
    assert trainer.test(module, ckpt_path=tmp_path / "2" / "checkpoints" / "last")[0]["count"] == 48
    # What is loaded into it stays.
    module.configure_model()
    assert trainer.test(module)[0]["count"] == 48
