"""Nodes are lost, and what they had in memory with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peer_tasks import save_and_lose
from stratagem_memory_checkpoint.checkpointer import PeerCheckpointer, _explained_when_full
from stratagem_memory_checkpoint.memory import MemoryLauncher
from stratagem_testing import StrategySubject

import stratagem
from stratagem import Checkpoint, LocalCollectives, Task
from stratagem.errors import CheckpointError, ConfigError

SUBJECT = StrategySubject("ddp", options={"timeout_s": 60})


@pytest.mark.parametrize("lost", [(), (0,), (1,), (2,), (0, 2)])
def test_a_checkpoint_is_whole_unless_neighbours_are_lost(tmp_path: Path, lost: tuple[int, ...]) -> None:
    for answer, read in SUBJECT.at(4 if len(lost) == 2 else 3).run(save_and_lose, str(tmp_path), lost):
        assert answer == "step=2, step=3"
        assert all(torch.equal(value, torch.arange(10.0) * 3) for value in read.values())


def test_what_two_neighbours_had_alone_is_gone(tmp_path: Path) -> None:
    for answer, _ in SUBJECT.at(3).run(save_and_lose, str(tmp_path), (1, 2)):
        assert answer.startswith("CheckpointError: peers://step=3 isn't whole any more: ")


def test_a_flipped_bit_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    collectives = LocalCollectives(torch.device("cpu"))
    inner: Any = object()  # never called
    checkpointer = PeerCheckpointer(inner, collectives, str(tmp_path))
    for step in (1, 2):
        checkpointer.save(f"peers://step={step}", Checkpoint({"model/w": torch.arange(10.0)}))
    (file,) = (tmp_path / "step=2").glob("tensors-*")
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    checkpointer.open("peers://step=1").verify()
    with pytest.raises(CheckpointError, match="aren't what was written"):
        checkpointer.open("peers://step=2").verify()
    checkpointer.open("peers://step=2", verify=False).verify()


def test_the_flag_adds_to_the_callbacks_that_set_gives() -> None:
    from stratagem_cli.settings import Settings
    from stratagem_cli.typed import Text
    from stratagem_trainer.commands.memory import with_memory

    for given, names in (
        (Text("[a.B, {class_path: c.D}]"), ["a.B", "c.D"]),
        (Text("a.B"), ["a.B"]),
        ([], []),
    ):
        settings = Settings(trainer={"callbacks": given})
        *others, ours = with_memory(settings, 5).trainer["callbacks"]
        assert [each if isinstance(each, str) else each["class_path"] for each in others] == names
        assert ours["init_args"] == {"every_n_train_steps": 5}


def test_without_a_launcher_that_restarts_it_is_refused() -> None:
    inner: Any = object()  # never called
    checkpointer = PeerCheckpointer(inner, LocalCollectives(torch.device("cpu")), None)
    with pytest.raises(ConfigError, match="nothing here starts workers again"):
        checkpointer.save("peers://step=1", Checkpoint({}))


def test_a_machine_without_a_tmpfs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_TMPFS", "/nowhere")
    with pytest.raises(ConfigError, match="/nowhere is none that can be written to"):
        MemoryLauncher(object()).launch(Task(print))  # type: ignore[arg-type]  # it raises before


def test_memory_that_is_full_is_reported() -> None:
    with (
        pytest.raises(CheckpointError, match=r"doesn't fit into memory .* --shm-size"),
        _explained_when_full("peers://a"),
    ):
        raise CheckpointError("rank 1 failed with OSError: [Errno 28] No space left on device")


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_a_number_of_steps_that_is_none(steps: float) -> None:
    from stratagem_memory_checkpoint import MemoryCheckpoint

    with pytest.raises(ConfigError, match="give a number of at least 1"):
        MemoryCheckpoint(steps)  # type: ignore[arg-type]  # wrong on purpose


def test_the_flag_names_what_is_installed_or_what_to_install() -> None:
    import stratagem_memory_checkpoint
    from stratagem_trainer.commands.memory import MEMORY_CALLBACK, MEMORY_EXTENSION

    from stratagem.sdk.catalogue import load_catalogue

    assert (
        load_catalogue().find("extension", MEMORY_EXTENSION).load() is stratagem_memory_checkpoint.PeerMemory
    )
    module, _, name = MEMORY_CALLBACK.rpartition(".")
    assert module == stratagem_memory_checkpoint.__name__
    assert issubclass(getattr(stratagem_memory_checkpoint, name), stratagem.Callback)
