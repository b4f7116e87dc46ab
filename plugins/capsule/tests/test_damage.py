"""Capsules that are damaged, incomplete or of another run are refused in a sentence."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from kept_runs import NET, Trained
from stratagem_capsule.files import read_batches, write_batches
from stratagem_cli.main import main

pytestmark = pytest.mark.timeout(300)
Captured = pytest.CaptureFixture[str]


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def run(trained: Trained, tmp_path: Path) -> Path:
    """A copy of a run with a step that isn't finite."""
    return Path(
        shutil.copytree(trained("ddp", "model.fault=nan", "model.at=9"), tmp_path / "run", symlinks=True)
    )


def refusal(capsys: Captured, *words: str) -> str:
    capsys.readouterr()
    assert main(["replay", *words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def batches_of(run: Path, rank: int = 1) -> Path:
    return min(run.glob(f"capsules/1/step-*/rank-{rank}/*.batches"))


def segment_of(run: Path) -> Path:
    return next(run.glob("capsules/1/step-*/segment.json"))


def changed(run: Path, **values: object) -> None:
    path = segment_of(run)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def cut_off(run: Path) -> None:
    path = batches_of(run)
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_byte(run: Path) -> None:
    path = batches_of(run)
    with zipfile.ZipFile(path) as archive:
        # Between its parts an archive has padding, of which no byte counts.
        largest = archive.read(max(archive.infolist(), key=lambda part: part.file_size))
    content = bytearray(path.read_bytes())
    content[content.index(largest) + len(largest) // 2] ^= 1
    path.write_bytes(content)


def forget_a_rank(run: Path) -> None:
    shutil.rmtree(batches_of(run).parent)


def forget_a_file(run: Path) -> None:
    batches_of(run).unlink()


def forget_the_checkpoint(run: Path) -> None:
    # The path in it is that of the run from which this one was copied.
    changed(run, base={"kind": "checkpoint", "path": str(run / "gone"), "checksums": {}})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "is damaged or cut off"),
        (flip_a_byte, "is damaged"),
        (forget_a_rank, "lacks the batches of rank 1: a capsule has those of all ranks"),
        (forget_a_file, "rank 1 has no batches of step 8"),
        (forget_the_checkpoint, "gone, from which step 9 starts, is missing"),
        (lambda run: changed(run, torch="1.0.0"), "was trained with torch 1.0.0, and this is torch"),
        (lambda run: changed(run, format="stratagem-capsule 9"), "has format 'stratagem-capsule 9'"),
        (lambda run: segment_of(run).write_text("{"), "segment.json is damaged"),
        (lambda run: segment_of(run).unlink(), "has no segment.json: the capsule isn't whole"),
        (lambda run: (run / "config.yaml").unlink(), "has no config.yaml"),
        (lambda run: shutil.rmtree(run / "capsules"), "nothing was kept there; train with --use capsule"),
    ],
)
def test_damage(run: Path, damage: Callable[[Path], object], words: str, capsys: Captured) -> None:
    damage(run)
    assert words in refusal(capsys, str(run), "--step", "9")


def test_a_step_that_was_not_kept(run: Path, capsys: Captured) -> None:
    said = refusal(capsys, str(run), "--step", "3")
    assert "step 3 isn't kept in" in said
    assert "has step 9 (non-finite)" in said
    assert "isn't a run's folder" in refusal(capsys, str(run / "nowhere"))


def test_code_in_a_file_is_not_run(run: Path, tmp_path: Path, capsys: Captured) -> None:
    path, mark = batches_of(run), tmp_path / "harmed"
    path.write_bytes(pickle.dumps([Harmful(mark)], protocol=2))
    assert "is damaged or cut off" in refusal(capsys, str(run), "--step", "9")
    path.write_bytes(_saved([Harmful(mark)], tmp_path))
    assert "it holds something else than tensors and values" in refusal(capsys, str(run), "--step", "9")
    assert not mark.exists()


def test_a_class_that_is_no_container_is_not_made(run: Path, capsys: Captured) -> None:
    path = batches_of(run, rank=0)
    records = read_batches(path)
    records[0]["batch"] = ("class", "subprocess:Popen", ("dict", []))
    write_batches(path, records)
    said = refusal(capsys, str(run), "--step", "9", "--strategy", "single")
    assert "batches of class subprocess:Popen, which the program doesn't define as a mapping" in said


@pytest.mark.parametrize("strategy", [(), ("--strategy", "single")])
def test_another_model(run: Path, tmp_path: Path, strategy: tuple[str, ...], capsys: Captured) -> None:
    source = Path(NET.rpartition(":")[0])
    (tmp_path / "other_net.py").write_text(source.read_text().replace("class Net", "class Other"))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(NET, f"{tmp_path / 'other_net.py'}:Other"))
    said = refusal(capsys, str(run), *strategy)
    assert "step 9 is of a Net, and this model is a Other: give the model of the run" in said


def test_other_parameters(run: Path, trained: Trained, tmp_path: Path, capsys: Captured) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("width: 16", "width: 8"))
    assert "shape" in refusal(capsys, str(run), "--strategy", "single")
    # From the beginning of a run, which another seed doesn't repeat.
    began = trained("ddp", "model.fault=raise", "model.at=4", fails=True)
    other = Path(shutil.copytree(began, tmp_path / "began"))
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    assert "can't be made again: 'body.0.weight' has other values" in refusal(
        capsys, str(other), "--strategy", "single"
    )


def test_another_number_of_ranks(run: Path, capsys: Captured) -> None:
    for number in (2, 3):
        shutil.copytree(batches_of(run).parent, batches_of(run).parent.with_name(f"rank-{number}"))
    changed(run, world_size=4, data_ranks=[0, 1, 2, 3])
    # Two ranks where four were.
    from stratagem_capsule import CapsuleError, replay

    from stratagem import Trainer  # type: ignore[attr-defined]  # stratagem-facade adds the name

    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, logger=False, enable_checkpointing=False)
    with pytest.raises(CapsuleError, match="has the batches of 4 data ranks, and this replay has 2"):
        replay(trainer, _net, run)


def _net() -> object:
    from kept_net import Net

    return Net()


def _saved(value: object, folder: Path) -> bytes:
    import torch

    torch.save(value, folder / "saved")
    return (folder / "saved").read_bytes()
