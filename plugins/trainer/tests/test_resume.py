from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from forged import rewrite_state
from small import Line

import stratagem
from stratagem.errors import CheckpointError


class SaveAt(stratagem.Callback):
    """Writes a checkpoint after a number of micro-batches."""

    def __init__(self, batches: int, path: Path) -> None:
        self.left, self.path = batches, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)


def fit(module: Line, tmp_path: Path, ckpt_path: Path | None = None, **how: Any) -> stratagem.Trainer:
    settings = {
        "strategy": "single",
        "accelerator": "cpu",
        "max_epochs": 3,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "logger": False,
        "run_dir": tmp_path / "run",
        "seed": 5,
        **how,
    }
    trainer = stratagem.Trainer(**settings)
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


# Epochs have 12 batches: before the first, in the middle, at the seam, in the next, in mid-window.
@pytest.mark.parametrize("batches", [1, 5, 12, 13, 30])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_continues_with_the_very_next_sample(tmp_path: Path, batches: int, accumulate: int) -> None:
    whole, rest = Line(dropout=0.3), Line(dropout=0.3)
    path = tmp_path / "ckpt"
    fit(whole, tmp_path, accumulate_grad_batches=accumulate, callbacks=SaveAt(batches, path))
    torch.manual_seed(999)  # what the resumed process drew before doesn't matter
    resumed = fit(rest, tmp_path, path, accumulate_grad_batches=accumulate)
    # In mid-window, the window begins again: its gradients aren't in the parameters yet.
    done = batches - (batches % 12) % accumulate
    assert rest.seen == whole.seen[done * 4 :]
    assert resumed.global_step == 36 // accumulate
    if done == batches:
        torch.testing.assert_close(rest.layer.weight, whole.layer.weight, rtol=0, atol=0)


def test_continues_with_workers(tmp_path: Path) -> None:
    class Loads(Line):
        def train_dataloader(self) -> Any:
            plain = super().train_dataloader()
            return torch.utils.data.DataLoader(plain.dataset, 4, shuffle=True, num_workers=2)

    whole, rest, path = Loads(dropout=0.3), Loads(dropout=0.3), tmp_path / "ckpt"
    fit(whole, tmp_path, callbacks=SaveAt(17, path), max_epochs=2)
    fit(rest, tmp_path, path, max_epochs=2)
    assert rest.seen == whole.seen[17 * 4 :]
    torch.testing.assert_close(rest.layer.weight, whole.layer.weight, rtol=0, atol=0)


def test_another_module_is_refused_with_names(tmp_path: Path) -> None:
    class Other(Line):
        def __init__(self) -> None:
            super().__init__()
            self.extra = torch.nn.Linear(2, 2)

    path = tmp_path / "ckpt"
    fit(Line(), tmp_path, callbacks=SaveAt(3, path))
    with pytest.raises(CheckpointError, match=r"missing keys: extra.bias, extra.weight"):
        fit(Other(), tmp_path, path)


def test_other_parameter_groups_are_refused(tmp_path: Path) -> None:
    class Grouped(Line):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam([{"params": [p]} for p in self.parameters()], lr=0.1)

    path = tmp_path / "ckpt"
    fit(Line(), tmp_path, callbacks=SaveAt(3, path))
    with pytest.raises(CheckpointError, match="parameter groups"):
        fit(Grouped(), tmp_path, path)


def test_evaluation_loads_the_weights_alone(tmp_path: Path) -> None:
    trained, fresh, path = Line(), Line(), tmp_path / "ckpt"
    trainer = fit(trained, tmp_path, callbacks=SaveAt(36, path))
    expected = trainer.test(trained)
    assert trainer.test(fresh) != expected
    assert trainer.test(fresh, ckpt_path=path) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state["progress"].update(epoch=1e300), r"is damaged: .*`\$\.progress\.epoch`"),
        (lambda state: state["progress"].update(step=-5), r"is damaged: .*`\$\.progress\.step`"),
        (lambda state: state["progress"].update(batch=True), r"is damaged: .*`\$\.progress\.batch`"),
        (lambda state: state["progress"].update(batch="3"), r"is damaged: .*`\$\.progress\.batch`"),
        (lambda state: state["progress"].pop("validated"), r"is damaged: .*validated"),
        (lambda state: state.update(progress=None), r"is damaged: .*`\$\.progress`"),
        (lambda state: state.update(data_ranks=0), r"is damaged: .*`\$\.data_ranks`"),
        (lambda state: state.update(schedulers=3), r"is damaged: .*`\$\.schedulers`"),
        (lambda state: state.update(schedulers=[{}, {}]), "2 learning rate schedulers"),
        (lambda state: state.update(callbacks=[]), r"is damaged: .*`\$\.callbacks`"),
        (lambda state: state.update(prepared=[1]), r"is damaged: .*`\$\.prepared`"),
        (lambda state: state.update(prepared={"optimizers": [7]}), "can't be restored: its state"),
        (lambda state: state.update(kind="other"), "has no trainer's progress"),
    ],
)
def test_a_state_that_no_trainer_writes_is_refused_in_a_sentence(
    tmp_path: Path, forgeable: Path, change: Any, reason: str
) -> None:
    path = tmp_path / "ckpt"
    shutil.copytree(forgeable, path)
    rewrite_state(path, change)
    with pytest.raises(CheckpointError, match=rf"^{path} .*{reason}") as caught:
        fit(Line(), tmp_path, path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["rng"].update(torch=1),
        lambda state: state["rng"].update(numpy=[]),
        lambda state: state["rng"].pop("python"),
        lambda state: state.update(metrics=3),
        lambda state: state.update(data=3),
    ],
)
def test_a_state_that_no_rank_writes_is_refused_in_a_sentence(
    tmp_path: Path, forgeable: Path, change: Any
) -> None:
    path = tmp_path / "ckpt"
    shutil.copytree(forgeable, path)
    rewrite_state(path, change, "rank-00000.json")
    with pytest.raises(CheckpointError, match=rf"^{path} can't be restored: the state of its r"):
        fit(Line(), tmp_path, path)


@pytest.fixture(scope="module")
def forgeable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of step 5."""
    folder = tmp_path_factory.mktemp("forgeable")
    fit(Line(), folder, callbacks=SaveAt(5, folder / "ckpt"), max_epochs=1)
    return folder / "ckpt"


def test_damaged_weights_are_refused_unless_nothing_is_verified(tmp_path: Path, forgeable: Path) -> None:
    path = tmp_path / "ckpt"
    shutil.copytree(forgeable, path)
    file = path / "tensors-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{file} is damaged: bytes 0 to"):
        fit(Line(), tmp_path, path)
    fit(Line(), tmp_path, path, verify_checkpoints=False)
