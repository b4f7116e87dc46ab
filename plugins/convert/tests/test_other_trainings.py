"""Trainings of others that become checkpoints of ours, those of sharded runs, and what the command says of both."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from converted_runs import (
    BATCHES,
    EPOCHS,
    Losses,
    Net,
    configured,
    convert,
    data,
    fit,
    lightning_losses,
    network,
    plain_losses,
    same,
)
from stratagem_cli.main import main
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
from stratagem_testing import StrategySubject
from torch import nn
from torch.utils.data import DataLoader

from stratagem import Checkpoint
from stratagem.errors import CheckpointError

IGNORED = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
IN_ORDER = "in_order"


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert main(["checkpoint", *args]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@IGNORED
@pytest.mark.parametrize("steps", [BATCHES, BATCHES + 2])
def test_a_run_goes_on_from_lightning(
    tmp_path: Path, steps: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the end of an epoch with its next losses; in the middle of one, its data begin again."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    monkeypatch.chdir(tmp_path)
    every = (
        {"every_n_epochs": 1, "save_on_train_epoch_end": True}
        if steps == BATCHES
        else {"every_n_train_steps": steps}
    )
    keeps = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **every)
    losses, _ = lightning_losses(None, IN_ORDER, tmp_path, list(range(BATCHES)), [keeps])
    source = f"step={steps}.ckpt"
    assert "don't name their parameters: --in-order" in run(capsys, "inspect", source)
    said = run(capsys, "convert", source, "begin", "--to", "stratagem", "--in-order")
    place = {BATCHES: "epoch 1, batch 0", BATCHES + 2: "epoch 1, batch 2"}[steps]
    assert f"with 1 optimizer, of 21 tensors, 1 learning rate schedulers, {place}, step {steps}" in said
    reported = run(capsys, "inspect", "begin")
    assert "doesn't resume exactly: the data: its epoch starts over from the first sample" in reported
    assert ("of which 2 batches were done" in reported) == (steps != BATCHES)
    if steps == BATCHES:
        same(fit(tmp_path, IN_ORDER, "begin"), losses, BATCHES)


def test_a_run_goes_on_from_dcp(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], "adamw")
    losses = plain_losses(net["net"], (optimizer, schedule, interval), 0, BATCHES)
    content = {
        "app": {
            "model": get_model_state_dict(net),
            "optim": get_optimizer_state_dict(net, optimizer),
            "lr_schedulers": [schedule.state_dict()],
            "epoch": 1,
            "global_step": BATCHES,
        }
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=tmp_path / "x")
    losses = plain_losses(net["net"], (optimizer, schedule, interval), BATCHES)
    weights = read_weights(str(tmp_path / "x"), "app.model")
    write_weights(weights, str(tmp_path / "begin"), "stratagem", Writing())
    same(fit(tmp_path, "adamw", str(tmp_path / "begin")), losses, BATCHES)


def _saved(subject: StrategySubject, path: str) -> None:
    trainer = subject.trainer(max_epochs=EPOCHS, max_steps=BATCHES, callbacks=[Losses({BATCHES: path})])
    trainer.fit(Net("adamw"), DataLoader(data(), 2))


@pytest.mark.parametrize("strategy", ["fsdp", "ddp_sharded"])
def test_of_sharded_runs(tmp_path: Path, strategy: str) -> None:
    """A plain loop goes on with the losses with which one process of ours does."""
    StrategySubject(strategy, options={"timeout_s": 60}).at(2).run(_saved, str(tmp_path / "run"))
    content = torch.load(convert(tmp_path / "run", tmp_path / "x.pt", "torch"), weights_only=True)
    ours = fit(tmp_path, "adamw", str(tmp_path / "run"))
    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], "adamw")
    net.load_state_dict(content["state_dict"])
    optimizer.load_state_dict(content["optimizer_states"][0])
    schedule.load_state_dict(content["lr_schedulers"][0])
    same(plain_losses(net["net"], (optimizer, schedule, interval), BATCHES), ours, BATCHES)


def test_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path, "adamw", middle=BATCHES + 2)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    states = "with 1 optimizer, of 28 tensors, 1 learning rate schedulers, epoch 1, batch 2, step 7"
    assert states in run(capsys, "convert", "middle", "x.ckpt")
    left = "left out: 28 tensors of optimizers' states, learning rate schedules and progress"
    assert f"{left}: --training converts them" in run(capsys, "convert", "middle", "x.pt")
    assert set(torch.load("x.pt")) == set(torch.load("x.ckpt")["state_dict"])
    assert f"{left}\n" in run(capsys, "convert", "middle", "y.ckpt", "--weights-only")
    assert f"{left}\n" in run(capsys, "convert", "middle", "x.safetensors")
    assert "optimizer_states" not in torch.load("y.ckpt")
    said = run(capsys, "convert", "middle", "z.pt", "--training", "--rename", "net.=model.")
    assert states in said
    renamed = torch.load("z.pt")
    assert renamed["optimizer_parameter_names"][0][0] == "model.0.bias"
    assert "with 1 optimizer, of 28 tensors" in run(capsys, "inspect", "z.pt")
    for command, words in (
        (["middle", "x", "--to", "deepspeed", "--training"], "deepspeed can't hold optimizers' states"),
        (["x.pt", "x", "--to", "dcp", "--training"], "x.pt has no optimizers' states that can be converted"),
        (["middle", "x", "--to", "dcp", "--in-order"], "--in-order is for files of torch.save"),
    ):
        assert words in " ".join(run(capsys, "convert", *command, code=2).split())
        assert not Path("x").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"optimizer_states": [{"state": {}}]}, "isn't in torch's form"),
        ({"optimizer_states": [{"state": {3: {}}, "param_groups": [{"params": [0]}]}]}, "other parameters"),
        ({"optimizer_parameter_names": [["w"], ["w"]]}, "doesn't name the parameters of 1 optimizers"),
        ({"optimizer_parameter_names": [["w", "x"]]}, "isn't in torch's form"),
        ({"epoch": -1}, "its epoch, batch, global_step or lr_schedulers"),
        ({"lr_schedulers": 3}, "its epoch, batch, global_step or lr_schedulers"),
    ],
)
def test_states_that_are_none(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    whole = {
        "state_dict": {"w": torch.ones(2)},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": [0]}]}],
        "optimizer_parameter_names": [["w"]],
        "epoch": 1,
    }
    torch.save(whole, tmp_path / "x.pt")
    assert read_weights(str(tmp_path / "x.pt")).training is not None
    torch.save({**whole, **content}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=words):
        read_weights(str(tmp_path / "x.pt"))


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([{"exp_avg": torch.ones(2)}, {"exp_avg": torch.ones(3)}], "its optimizer has another order"),
        ([{"mean": torch.ones(3)}, {"mean": torch.ones(2)}], "don't have their parameters' shapes"),
        ([{"exp_avg": torch.ones(3)}], "1 optimizers, the first with 1 parameters, and its state dict has 2"),
    ],
)
def test_an_order_that_it_does_not_have(tmp_path: Path, states: list[Any], words: str) -> None:
    numbers = list(range(len(states)))
    content = {
        "state_dict": {"a": torch.ones(3), "b": torch.ones(2), "bn.running_mean": torch.ones(2)},
        "optimizer_states": [{"state": dict(enumerate(states)), "param_groups": [{"params": numbers}]}],
    }
    torch.save(content, tmp_path / "x.pt")
    assert read_weights(str(tmp_path / "x.pt")).training is None
    with pytest.raises(CheckpointError, match=words):
        read_weights(str(tmp_path / "x.pt"), in_order=True)


SCHEDULER = {
    "milestones": Counter({2: 1, 0: 3}),
    "last_epoch": 4,
    "nested": [{"a": (0.9, 0.99), "empty": {}}, {}],
}


def _two_optimizers(checkpointer: Any, path: str, **more: Any) -> None:
    groups = [
        [{"params": ["b"], "lr": torch.tensor(0.5), "betas": (0.9, 0.99)}],
        [{"params": ["a.0"], "lr": 0.1}, {"params": ["c"], "lr": 0.2, "foreach": None}],
    ]
    described = [{"class": "X", "groups": each, "values": {}} for each in groups]
    described[1]["values"] = {"c": {"count": 3}}
    tensors = {f"model/{name}": torch.ones(2) for name in ("a.0", "b", "c")}
    tensors["optimizer/0/b/exp_avg"], tensors["optimizer/1/c/sum"] = torch.ones(2) * 5, torch.ones(2) * 7
    state = {
        "prepared": {"optimizers": described},
        "schedulers": [{**SCHEDULER, **more}],
        "progress": {"epoch": 2, "batch": 0, "step": 4},
    }
    checkpointer.save(path, Checkpoint(tensors, state))


@pytest.mark.parametrize(("name", "file"), [("torch", "x.pt"), ("dcp", "x"), ("lightning", "x.ckpt")])
def test_all_kinds_of_values_come_back(tmp_path: Path, checkpointer: Any, name: str, file: str) -> None:
    _two_optimizers(checkpointer, str(tmp_path / "run"))
    back = convert(Path(convert(tmp_path / "run", tmp_path / file, name)), tmp_path / "back", "stratagem")
    ours, theirs = checkpointer.open(str(tmp_path / "run")), checkpointer.open(back)
    assert set(theirs.tensors) == set(ours.tensors)
    for reader in (ours, theirs):
        targets = {key: torch.zeros(2) for key in reader.tensors if key.startswith("optimizer")}
        reader.read(targets)
        assert {key: tensor[0].item() for key, tensor in targets.items()} == {
            "optimizer/0/b/exp_avg": 5,
            "optimizer/1/c/sum": 7,
        }
    assert theirs.state["schedulers"] == [SCHEDULER]
    assert type(theirs.state["schedulers"][0]["milestones"]) is Counter
    for one, other in zip(
        ours.state["prepared"]["optimizers"], theirs.state["prepared"]["optimizers"], strict=True
    ):
        assert one["groups"] == other["groups"]
        assert one["values"] == other["values"]


def test_what_torch_does_not_load_is_refused(tmp_path: Path, checkpointer: Any) -> None:
    _two_optimizers(checkpointer, str(tmp_path / "run"), other=deque([1]))
    with pytest.raises(CheckpointError, match=r"weights_only=True \(.*deque.*--weights-only"):
        convert(tmp_path / "run", tmp_path / "x.pt", "torch")
    assert not (tmp_path / "x.pt").exists()


def test_numbers_that_dcp_made_text_are_refused(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    weight = nn.Parameter(torch.ones(2))
    content = {
        "model": {"w": weight.detach()},
        "optim": {"state": {"w": {"sum": torch.ones(2)}}, "param_groups": [{"params": ["w"], "lr": 0.1}]},
        "lr_schedulers": [
            torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([weight], 0.1), [3]).state_dict()
        ],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=tmp_path / "x")
    with pytest.raises(CheckpointError, match="numbers for keys"):
        read_weights(str(tmp_path / "x"))
