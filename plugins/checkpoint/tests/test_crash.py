"""Kill -9 at every step of a save: the old or the new checkpoint is there whole, whichever it is."""

import os
import signal
import sys

import pytest
import torch
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST

from stratagem import Checkpoint
from stratagem.errors import CheckpointError

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")


def checkpoint_of(step):
    tensors = {"w": torch.full((50, 4), float(step)), f"only{step}": torch.ones(2)}
    return Checkpoint(tensors, {"step": step, "t": torch.tensor(step)}, {"step": step})


class Tracked(LocalFilesystem):
    """Calls `reached` before and after all that a save does to the disk that no audit event tells of."""

    def __init__(self, reached, can_exchange):
        super().__init__(MANIFEST)
        self.reached = reached
        self.can_exchange = can_exchange

    def write(self, path, parts):
        def each():
            for part in parts:
                self.reached()
                yield part

        size_bytes = super().write(path, each())
        self.reached()
        return size_bytes

    def remove(self, path):
        self.reached()
        super().remove(path)

    def exchange(self, first, second):
        self.reached()
        done = self.can_exchange and super().exchange(first, second)
        self.reached()
        return done


def until(kill_at, can_exchange, collectives, act):
    """Let a checkpointer act, and die by SIGKILL at the `kill_at`-th change to the disk; returns their number."""
    reached = 0

    def reach():
        nonlocal reached
        reached += 1
        if reached == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, arguments):
        writes = event == "open" and isinstance(arguments[1], str) and "x" in arguments[1]
        if event in CHANGES or writes:
            reach()

    sys.addaudithook(audit)

    class Checkpointer(DirectoryCheckpointer):
        def filesystem(self, path):
            return Tracked(reach, can_exchange), path

    act(Checkpointer(collectives))
    return reached


def save_until(collectives, path, step, kill_at, can_exchange):
    return until(kill_at, can_exchange, collectives, lambda it: it.save(path, checkpoint_of(step)))


def remove_until(collectives, path, kill_at):
    return until(kill_at, True, collectives, lambda it: it.remove(path))


def whole_step(checkpointer, path):
    """Which checkpoint is at `path`, after reading all of it."""
    reader = checkpointer.open(path)
    step = reader.state["step"]
    assert reader.state["t"] == step
    assert reader.rank_state(0) == {"step": step}
    expected = checkpoint_of(step).tensors
    targets = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    reader.read(targets)
    assert set(reader.tensors) == set(expected)
    for key, tensor in expected.items():
        assert torch.equal(targets[key], tensor)
    return step


@pytest.mark.parametrize(
    "kind",
    [
        "first",
        pytest.param("swapped", marks=pytest.mark.long),
        pytest.param("renamed", marks=pytest.mark.long),
    ],
)
def test_kill_at_every_step(ranks, checkpointer, tmp_path, kind):
    arguments = {"step": 2, "can_exchange": kind == "swapped"}
    found = []
    steps = None
    kill_at = 1
    while steps is None:
        parent = tmp_path / str(kill_at)
        parent.mkdir()
        path = str(parent / "last")
        if kind != "first":
            checkpointer.save(path, checkpoint_of(1))
        outcome = ranks(save_until, 1, check=False, path=path, kill_at=kill_at, **arguments)
        if outcome.codes == [0]:
            steps = outcome.results[0]
        else:
            assert outcome.codes == [-signal.SIGKILL]
        try:
            found.append(whole_step(checkpointer, path))
        except CheckpointError as error:
            if kind != "first" or "there is no checkpoint at" not in str(error):
                raise
            found.append(0)
        for name in os.listdir(parent):
            if name.startswith(".last.tmp-"):
                with pytest.raises(CheckpointError, match="is an unfinished checkpoint"):
                    checkpointer.open(str(parent / name))
        checkpointer.save(path, checkpoint_of(3))
        assert whole_step(checkpointer, path) == 3
        assert os.listdir(parent) == ["last"]
        kill_at += 1
    old = 0 if kind == "first" else 1
    assert steps >= 20
    assert len(found) == steps + 1
    assert found == sorted(found), "a later crash brought back the older checkpoint"
    assert set(found) == {old, 2}


def test_kill_at_every_step_of_removing(ranks, checkpointer, tmp_path):
    path = str(tmp_path / "last")
    found = set()
    codes = None
    kill_at = 1
    while codes != [0]:
        checkpointer.save(path, checkpoint_of(1))
        codes = ranks(remove_until, 1, check=False, path=path, kill_at=kill_at).codes
        try:
            found.add(f"step {whole_step(checkpointer, path)}")
        except CheckpointError as error:
            found.add(str(error).replace(path, "PATH"))
        kill_at += 1
    assert found == {
        "step 1",
        "PATH is not a checkpoint: it has no manifest.json; give the directory that has one",
        "there is no checkpoint at PATH; check the path",
    }
    assert os.listdir(tmp_path) == []


def save_and_lose_rank_1(collectives, path):
    class Checkpointer(DirectoryCheckpointer):
        def filesystem(self, path):
            filesystem = LocalFilesystem(MANIFEST)
            if collectives.rank == 1:
                filesystem.write = lambda path, parts: os.kill(os.getpid(), signal.SIGKILL)
            return filesystem, path

    Checkpointer(collectives).save(path, checkpoint_of(2))


def test_a_rank_dies_while_writing(ranks, checkpointer, tmp_path):
    path = str(tmp_path / "last")
    checkpointer.save(path, checkpoint_of(1))
    outcome = ranks(save_and_lose_rank_1, 2, check=False, path=path)
    assert outcome.codes == [1, -signal.SIGKILL]
    assert whole_step(checkpointer, path) == 1
    assert os.listdir(tmp_path) == ["last"], "the surviving rank left its folder"


def save_on_a_full_disk(collectives, path):
    class Checkpointer(DirectoryCheckpointer):
        def filesystem(self, path):
            filesystem = LocalFilesystem(MANIFEST)
            if collectives.rank == 1:
                filesystem.write = full
            return filesystem, path

    def full(path, parts):
        raise OSError(28, "No space left on device")

    try:
        Checkpointer(collectives).save(path, checkpoint_of(2))
    except CheckpointError as error:
        return str(error)


def test_a_full_disk_on_one_rank_fails_all_and_keeps_the_old(ranks, checkpointer, tmp_path):
    path = str(tmp_path / "last")
    checkpointer.save(path, checkpoint_of(1))
    messages = ranks(save_on_a_full_disk, 2, path=path)
    assert messages == ["rank 1 failed with OSError: [Errno 28] No space left on device"] * 2
    assert whole_step(checkpointer, path) == 1
    assert os.listdir(tmp_path) == ["last"]
