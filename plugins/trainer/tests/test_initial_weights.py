"""A fit that begins with the weights of another, and what a checkpoint says of resuming."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import folder, net, refused  # noqa: F401
from small import Line
from stratagem_cli.main import main
from stratagem_trainer.callbacks.base import Callback

import stratagem
from stratagem import InitialWeights, LocalCollectives
from stratagem.errors import CheckpointError


class Keep(Callback):
    """The weights with which training begins."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.weight = module.layer.weight.detach().clone()


class SaveAt(Callback):
    def __init__(self, batches: int, path: Path) -> None:
        self.left, self.path = batches, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)


def fit(
    module: Any, run_dir: Path, *callbacks: Any, ckpt_path: Path | None = None, **how: Any
) -> stratagem.Trainer:
    settings = {"max_epochs": 1, "enable_progress_bar": False, "logger": False, "seed": 5, **how}
    where = {"strategy": "single", "accelerator": "cpu", "run_dir": run_dir, "enable_checkpointing": False}
    trainer = stratagem.Trainer(**where, callbacks=list(callbacks), **settings)
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def test_a_fit_begins_with_other_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, keep, path = Line(), Keep(), tmp_path / "ckpt"
    fit(first, tmp_path / "a", SaveAt(12, path))
    fit(Line(), tmp_path / "b", keep, initial_weights=str(path))
    assert torch.equal(keep.weight, first.layer.weight)
    assert f"weights     2 tensors from {path}" in capfd.readouterr().err


def test_a_run_that_goes_on_keeps_its_own_weights(tmp_path: Path) -> None:
    path, other, whole, rest = tmp_path / "ckpt", tmp_path / "other", Line(), Line()
    fit(Line(), tmp_path / "a", SaveAt(1, other))
    fit(whole, tmp_path / "b", SaveAt(5, path))
    fit(rest, tmp_path / "c", ckpt_path=path, initial_weights=str(other))
    assert torch.equal(rest.layer.weight, whole.layer.weight)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    fit(Line(), tmp_path / "a", SaveAt(1, path))
    with pytest.raises(CheckpointError, match=r"no tensor in .* begins with 'net\.'"):
        fit(Line(), tmp_path / "b", initial_weights=InitialWeights(str(path), rename={"net.": ""}))


def test_on_the_command_line(net: Path, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    common = ["--max-epochs", "1", "--accelerator", "cpu", "--set", "trainer.enable_progress_bar=false"]
    assert main(["fit", "net.py:Net", "--run-dir", "a", *common]) == 0
    weights = '{"path": "a/checkpoints/last", "strict": false, "skip": ["net.bias"]}'
    assert (
        main(["fit", "net.py:Net", "--run-dir", "b", *common, "--set", f"trainer.initial_weights={weights}"])
        == 0
    )
    assert "weights     1 tensors from a/checkpoints/last; 1 skipped: net.bias" in capfd.readouterr().err


def test_bad_weights_on_the_command_line(net: Path, refused: Any) -> None:  # noqa: F811
    Path("config.yaml").write_text("trainer:\n  initial_weights: 7\n")
    said = "trainer.initial_weights=7 is of the wrong type: Trainer wants InitialWeights"
    assert said in refused("fit", "net.py:Net", "--config", "config.yaml")


class Augmented(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return torch.rand(4) + random.random(), torch.ones(1)


class Augments(Line):
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Augmented(), 4, shuffle=True, num_workers=2)


def test_random_augmentation_in_workers_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole, rest, path = Augments(dropout=0.3), Augments(dropout=0.3), tmp_path / "ckpt"
    fit(whole, tmp_path / "a", SaveAt(17, path), max_epochs=3)
    torch.manual_seed(99)
    fit(rest, tmp_path / "b", ckpt_path=path, max_epochs=3)
    assert rest.seen == whole.seen[17 * 4 :]
    assert torch.equal(rest.layer.weight, whole.layer.weight)
    from stratagem_checkpoint import DirectoryCheckpointer

    resume = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(str(path)).state["resume"]
    assert resume["inexact"] == {}
    assert resume["exact"][-1] == "the data, from the next sample on: 48 samples, shuffled with seed 5"


def test_what_does_not_resume_is_reported(tmp_path: Path) -> None:
    class Streams(Line):
        def train_dataloader(self) -> Any:
            return [(torch.rand(4, 4), torch.ones(4, 1)) for _ in range(3)]

    path = tmp_path / "ckpt"
    fit(Streams(), tmp_path / "a", SaveAt(2, path))
    from stratagem_convert.tools.inspecting import lines, summarize

    said = list(lines(summarize(str(path))))
    assert any(line.startswith("doesn't resume exactly: the data: a list keeps no place") for line in said)
