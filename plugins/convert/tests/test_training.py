"""A run saved in the middle of its training goes on elsewhere: in plain PyTorch, DCP, Lightning, and here again."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from converted_runs import (
    BATCHES,
    EPOCHS,
    OPTIMIZERS,
    configured,
    convert,
    fit,
    lightning_losses,
    network,
    plain_losses,
    same,
)
from stratagem_convert.formats.converting import read_weights
from stratagem_convert.formats.stored import WeightsReader
from torch import nn

from stratagem.errors import CheckpointError


@pytest.fixture(params=OPTIMIZERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def losses(tmp_path: Path, kind: str) -> dict[int, float]:
    """Of a run that was saved as `middle` in its second epoch, and as `last` and `boundary` at the end of the first.

    As `last` after the last batch, and as `boundary` when the epoch was over.
    """
    found = fit(tmp_path, kind, middle=BATCHES + 2, last=BATCHES, boundary=-BATCHES)
    assert sorted(found) == list(range(EPOCHS * BATCHES))
    return found


def test_plain_torch_goes_on(tmp_path: Path, losses: dict[int, float], kind: str) -> None:
    path = convert(tmp_path / "middle", tmp_path / "x.pt", "torch")
    content = torch.load(path, weights_only=True)
    step = content["global_step"]
    assert (content["epoch"], content["batch"], step) == (1, 2, BATCHES + 2)
    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], kind)
    net.load_state_dict(content["state_dict"])
    optimizer.load_state_dict(content["optimizer_states"][0])
    schedule.load_state_dict(content["lr_schedulers"][0])
    assert not any("param_names" in group for group in optimizer.param_groups)
    same(plain_losses(net["net"], (optimizer, schedule, interval), step), losses, step)


def test_dcp_goes_on(tmp_path: Path, losses: dict[int, float], kind: str) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    path = convert(tmp_path / "middle", tmp_path / "x", "dcp")
    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], kind)
    content = {
        "model": get_model_state_dict(net),
        "optim": get_optimizer_state_dict(net, optimizer),
        "lr_schedulers": [schedule.state_dict()],
        "global_step": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(content, checkpoint_id=path)
    set_model_state_dict(net, content["model"])
    set_optimizer_state_dict(net, optimizer, content["optim"])
    schedule.load_state_dict(content["lr_schedulers"][0])
    step = content["global_step"]
    assert step == BATCHES + 2
    same(plain_losses(net["net"], (optimizer, schedule, interval), step), losses, step)


IGNORED = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)


@IGNORED
@pytest.mark.parametrize("where", ["boundary", "last", "middle"])
def test_lightning_goes_on(tmp_path: Path, losses: dict[int, float], kind: str, where: str) -> None:
    if (kind, where) == ("sgd", "last"):
        with pytest.raises(CheckpointError, match="between the last batch of epoch 0 and the epoch's end"):
            convert(tmp_path / where, tmp_path / "x.ckpt", "lightning")
        assert not (tmp_path / "x.ckpt").exists()
        return
    path = convert(tmp_path / where, tmp_path / "x.ckpt", "lightning")
    first = BATCHES + 2 if where == "middle" else BATCHES
    rest = list(range(first % BATCHES, BATCHES))
    found, trainer = lightning_losses(path, kind, tmp_path, [*rest, *range(BATCHES - len(rest))])
    same(found, losses, first)
    assert (trainer.global_step, trainer.current_epoch) == (EPOCHS * BATCHES, EPOCHS)


@pytest.mark.parametrize(("name", "file"), [("torch", "x.pt"), ("dcp", "x"), ("lightning", "x.ckpt")])
def test_there_and_back(tmp_path: Path, losses: dict[int, float], kind: str, name: str, file: str) -> None:
    """What comes back goes on where an epoch begins, and has all states bit for bit."""
    there = convert(tmp_path / "boundary", tmp_path / file, name)
    back = convert(Path(there), tmp_path / "back", "stratagem")
    ours, theirs = read_weights(str(tmp_path / "boundary")), read_weights(back)
    assert ours.training is not None
    assert theirs.training is not None
    assert (theirs.training.epoch, theirs.training.batch, theirs.training.step) == (1, 0, BATCHES)
    with WeightsReader(ours) as of_ours, WeightsReader(theirs) as of_theirs:
        pairs = [(ours.tensors, theirs.tensors)]
        pairs += [
            (a.tensors(), b.tensors()) for a, b in zip(ours.training.optimizers, theirs.training.optimizers)
        ]
        for before, after in pairs:
            assert before
            assert set(before) <= set(after)
            for key in before:
                assert torch.equal(of_ours.read(before[key]), of_theirs.read(after[key])), key
    found = fit(tmp_path, kind, back)
    same(found, losses, BATCHES)
