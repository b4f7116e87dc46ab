"""What a record has, and that nothing is left behind in torch or the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_diff import compare, record, sentence
from stratagem_diff.__main__ import main
from stratagem_diff.files import KINDS, Entry, Place, RankWriter, read_record
from torch import nn

from stratagem.errors import UsageError


def train(folder: Path | None, *, scale: float = 1.0, dropout: float = 0.0, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(dropout), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(net.parameters())
    generator = torch.Generator().manual_seed(1)

    def steps() -> None:
        for _ in range(4):
            batch, target = (torch.randn(6, width, generator=generator) for width in (8, 4))
            optimizer.zero_grad()
            nn.functional.mse_loss(net(batch), target).backward()
            net[1].weight.grad.mul_(scale)
            optimizer.step()

    if folder is None:
        steps()
    else:
        with record(net, optimizer, folder, **options):
            steps()
    return net


def test_recording_changes_nothing(tmp_path: Path) -> None:
    plain, recorded = train(None, dropout=0.5), train(tmp_path / "a", dropout=0.5)
    for one, other in zip(plain.state_dict().values(), recorded.state_dict().values()):
        assert torch.equal(one, other)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in recorded.modules())


def test_a_record_has_each_kind_of_value(tmp_path: Path) -> None:
    train(tmp_path / "a", steps=2)
    (rank,) = read_record(tmp_path / "a")
    assert rank.steps == 2
    kinds = {entry.place.kind for entry in rank.entries}
    assert kinds == set(KINDS) - {"buffer"}
    assert {entry.place.step for entry in rank.entries} == {0, 1, 2}
    assert rank.model.modules == {
        "": "Sequential",
        "0": "Linear",
        "1": "LayerNorm",
        "2": "Dropout",
        "3": "Linear",
    }


def test_large_tensors_are_projected_and_still_compared(tmp_path: Path) -> None:
    for name, scale in (("a", 1.0), ("b", 1.0), ("c", 1.01)):
        train(tmp_path / name, scale=scale, whole=10)
    batches = [each for each in read_record(tmp_path / "a")[0].entries if each.value.shape == (6, 8)]
    assert len(batches) == 3
    assert not any(each.value.is_whole for each in batches)
    assert compare(tmp_path / "a", tmp_path / "b").first is None
    found = compare(tmp_path / "a", tmp_path / "c")
    begins = "Step 1: the gradient of parameter '1.weight' differs in the only process: B's is 1.01"
    assert sentence(found).startswith(begins)


def test_another_dropout_is_named_by_its_module(tmp_path: Path) -> None:
    train(tmp_path / "a", dropout=0.5)
    train(tmp_path / "b", dropout=0.25)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.first is not None
    assert (found.first.place.kind, found.first.place.name) == ("output", "2")


def train_with_average(folder: Path, decay: float | None) -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"body": nn.Linear(8, 4), "average": nn.Linear(8, 4)})
    net["average"].requires_grad_(False)
    optimizer = torch.optim.AdamW(net["body"].parameters())
    with record(net, optimizer, folder):
        for _ in range(3):
            optimizer.zero_grad()
            net["body"](torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
            if decay is not None:
                with torch.no_grad():
                    net["average"].weight.lerp_(net["body"].weight, 1 - decay)


@pytest.mark.parametrize(
    ("decay", "says"), [(0.8, "the relative error is"), (None, "nothing changes it in B")]
)
def test_a_moving_average_of_weights_is_compared(tmp_path: Path, decay: float | None, says: str) -> None:
    for name, value in (("a", 0.9), ("same", 0.9), ("b", decay)):
        train_with_average(tmp_path / name, value)
    assert compare(tmp_path / "a", tmp_path / "same").first is None
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.first is not None
    assert (found.first.place.kind, found.first.place.name) == ("parameter", "average.weight")
    assert says in sentence(found)


class Sharded(torch.optim.SGD):
    """Steps by an optimizer of the parameters that this rank has, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.optim = torch.optim.SGD(parameters[:1], lr=0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # without a closure
        self.optim.step()


@pytest.mark.parametrize("kind", [lambda parameters: torch.optim.SGD(parameters, lr=0.1), Sharded])
def test_steps_are_counted_where_no_call_of_the_model_is_seen(tmp_path: Path, kind: Any) -> None:
    net = nn.Linear(3, 2)
    optimizer = kind(list(net.parameters()))
    with record(net, None, tmp_path / "record", steps=3):
        for _ in range(3):
            optimizer.zero_grad()
            (
                net.weight.square().sum() + net.bias.sum()
            ).backward()  # as in a compiled model, whose hooks rest
            optimizer.step()
    (found,) = read_record(tmp_path / "record")
    assert found.steps == 3


def test_dropout_can_be_off_while_it_is_recorded(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with record(net, None, tmp_path / "a", dropout=False):
        batch = torch.ones(2, 3)
        assert torch.equal(net(batch), net[0](batch))
    assert net[1].p == 0.5


def test_another_rounding_stays_within_rounding(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", rounding=True)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.first is None
    assert max(error for error, _ in found.errors.values()) > 0


@pytest.mark.parametrize("step", [1, 2])
def test_a_rounding_error_that_is_small_by_chance_is_no_measure(tmp_path: Path, step: int) -> None:
    """After the first step, a place may differ by what is usual for such values there."""
    train(tmp_path / "a")
    (a,) = read_record(tmp_path / "a")
    place = Place(step, "optimizer state", "0.weight", item="exp_avg_sq")

    def moved(entry: Entry) -> Entry:
        return replace(entry, value=replace(entry.value, data=entry.value.data * (1 + 1e-4)))

    for name, left_out in (("b", []), ("noise", [place])):
        entries = [
            moved(each) if (each.place.step, each.place.item) == (step, "exp_avg_sq") else each
            for each in a.entries
            if each.place not in left_out
        ]
        entries += [each for each in a.entries if each.place in left_out]
        writer = RankWriter(tmp_path / name, 0)
        writer.write_step(entries)
        writer.close(0, 1, a.steps, a.model, a.facts)
    found = compare(tmp_path / "a", tmp_path / "b", [tmp_path / "noise"])
    assert [each.place for each in found.differences] == ([place] if step == 1 else [])


def test_a_lower_precision_of_one_run_alone_is_a_difference(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "rounding", rounding=True)
    with torch.autocast("cpu", torch.bfloat16):
        for name in ("b", "same"):
            train(tmp_path / name)
        train(tmp_path / "coarse", rounding=True)
    first = compare(tmp_path / "a", tmp_path / "b", [tmp_path / "rounding"]).first
    assert first is not None
    assert first.place.step == 1
    assert compare(tmp_path / "b", tmp_path / "same", [tmp_path / "coarse"]).first is None


@pytest.mark.parametrize("file", ["record.json", "step-1.safetensors"])
def test_a_damaged_record_is_refused(tmp_path: Path, file: str) -> None:
    train(tmp_path / "a")
    path = tmp_path / "a/rank-0" / file
    data = bytearray(path.read_bytes())
    for at in (len(data) // 3, len(data) - 40):
        damaged = data.copy()
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="damaged"):
            read_record(tmp_path / "a")
    path.unlink()
    with pytest.raises(UsageError, match=r"lacks|isn't complete"):
        read_record(tmp_path / "a")


def test_a_missing_or_moved_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(tmp_path / "a")
    with pytest.raises(UsageError, match=r"is of 2 ranks and lacks those of ranks \[0\]"):
        read_record(tmp_path / "a")
    (tmp_path / "a/rank-1").rename(tmp_path / "a/rank-0")
    with pytest.raises(UsageError, match="rank-0 has the record of another rank"):
        read_record(tmp_path / "a")


PROGRAM = """
import sys, torch
from torch import nn
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=float(sys.argv[1]))
for _ in range(2):
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""


def test_a_program_is_recorded_unchanged(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    call = nn.Module.__call__
    assert main(["record", "--out", str(tmp_path / "a"), str(program), "0.1"]) == 0
    assert nn.Module.__call__ is call
    assert not nn.modules.module._global_module_registration_hooks
    (rank,) = read_record(tmp_path / "a")
    assert (rank.steps, rank.model.modules) == (2, {"": "Linear"})
    assert json.loads((tmp_path / "a/rank-0/record.json").read_text())["record"]["facts"]["rounding"] is False


def test_a_program_that_trains_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch")
    assert main(["record", "--out", str(tmp_path / "a"), str(program)]) == 2
    assert "called no module with parameters to train" in capsys.readouterr().err
    assert main(["record", str(tmp_path / "none.py")]) == 2
