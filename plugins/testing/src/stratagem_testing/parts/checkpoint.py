"""Checks for every checkpointer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stratagem_clusters import TorchElastic

from stratagem import Checkpoint, Checkpointer, CheckpointReader, LocalCollectives, ProcessGroupCollectives
from stratagem.errors import CheckpointError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.left_over import count_held, expect_nothing_left
from stratagem_testing.parts.subject import CheckpointSubject

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 2)
_Held = dict[str, int]
"""Name of a kind of objects → number of them that the process holds."""

STATE: dict[str, Any] = {
    "nested": {"list": [1, 2.5, None, True], "tuple": (1, "two"), "bytes": b"\x00\xff"},
    "by_number": {3: "three", -1: [float("inf"), float("-inf")]},
    "small": torch.tensor([1.5, -2.0]),
    "text": "naïve – “quoted”",
}


def _tensors() -> dict[str, torch.Tensor]:
    return {
        "model/weight": torch.arange(12.0).reshape(3, 4),
        "model/layers.0.weight_1": torch.tensor([3.0]),
        "model/transposed": torch.arange(6.0).reshape(2, 3).T,
        "model/scalar": torch.tensor(7, dtype=torch.int64),
        "model/empty": torch.empty(0, 3),
        "model/half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        "model/flags": torch.tensor([True, False]),
        # Values whose bits a comparison of values would miss: a NaN, a negative zero, the smallest number.
        "model/double": torch.tensor([float("nan"), -0.0, 5e-324, float("-inf"), 1 / 3], dtype=torch.float64),
        "model/float16": torch.tensor([6e-8, 65504.0, -0.0], dtype=torch.float16),
        "model/complex": torch.tensor([complex(1 / 3, -2.0)], dtype=torch.complex64),
        "model/complex128": torch.tensor([complex(1 / 3, -1 / 7)], dtype=torch.complex128),
        "model/int8": torch.tensor([-128, 127], dtype=torch.int8),
        "model/uint8": torch.tensor([0, 255], dtype=torch.uint8),
        "model/int16": torch.tensor([-(2**15), 2**15 - 1], dtype=torch.int16),
        "model/int32": torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32),
        "model/int64": torch.tensor([-(2**63), 2**53 + 1]),
        "model/float8": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
        "model/float8_e5m2": torch.tensor([0.25, -3.0]).to(torch.float8_e5m2),
        "optimizer/0/weight/exp_avg": torch.full((3, 4), 0.25),
    }


def _bits(tensor: torch.Tensor) -> list[int]:
    """Return the bytes of a tensor's values. They differ for different NaNs, and for 0 and -0."""
    flat = tensor.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    return flat.view(torch.uint8).tolist()


def _in_group(subject: CheckpointSubject, work: Callable[..., Any], *args: Any) -> Any:
    """Call `work(checkpointer, rank, *args)` in a process group of this task's ranks."""
    collectives = ProcessGroupCollectives(
        TorchElastic(os.environ), torch.device("cpu"), "gloo", timedelta(seconds=120)
    )
    failed = True
    try:
        checkpointer = subject.load()(collectives)
        try:
            result = work(checkpointer, collectives.rank, *args)
            failed = False
        finally:
            checkpointer.close(failed)
    finally:
        collectives.close(failed)
    return result


@check(world_sizes=SIZES)
def check_round_trip(subject: CheckpointSubject) -> None:
    """Tensors of every dtype and shape, state and each rank's state are read as they were saved."""
    subject.run(_in_group, _save_and_compare, f"{subject.folder}/one")


def _save(checkpointer: Checkpointer, rank: int, path: str, add: float = 0.0) -> None:
    tensors = _tensors()
    tensors["model/weight"] = tensors["model/weight"] + add
    checkpointer.save(path, Checkpoint(tensors, {**STATE, "add": add}, {"rank": rank}))


def _save_and_compare(checkpointer: Checkpointer, rank: int, path: str) -> None:
    _save(checkpointer, rank, path)
    reader = checkpointer.open(path)
    saved = _tensors()
    listed = {key: (info.shape, info.dtype) for key, info in reader.tensors.items()}
    wanted = {key: (tuple(value.shape), value.dtype) for key, value in saved.items()}
    expect(listed == wanted, f"it lists {listed}")
    read = {key: torch.zeros_like(value) for key, value in saved.items()}
    reader.read(dict(read))  # tensors are filled in place, not replaced in the mapping
    for key, value in saved.items():
        expect(_bits(read[key]) == _bits(value), f"{key} is read as {read[key].tolist()}")
    state = dict(reader.state)
    small = state.pop("small")
    expect(bool(torch.equal(small, STATE["small"])), f"a small tensor is read as {small}")
    others = {key: value for key, value in STATE.items() if key != "small"}
    expect(state == {**others, "add": 0.0}, f"the state is read as {state}")
    own = reader.rank_state(rank)
    expect(own is not None and dict(own) == {"rank": rank}, f"rank {rank}'s state is read as {own}")


@check(world_sizes=SIZES)
def check_replaces(subject: CheckpointSubject) -> None:
    """Saving to a path with a checkpoint replaces all of it. Removing deletes it, and can be repeated."""
    subject.run(_in_group, _replace, f"{subject.folder}/one")
    expect(not Path(subject.folder, "one").exists(), "a removed checkpoint is still there")


def _replace(checkpointer: Checkpointer, rank: int, path: str) -> None:
    for add in (0.0, 10.0):
        _save(checkpointer, rank, path, add)
    reader = checkpointer.open(path)
    weight = torch.zeros(3, 4)
    reader.read({"model/weight": weight})
    expect(
        bool(torch.equal(weight, _tensors()["model/weight"] + 10)),
        "the second checkpoint's tensor is the first's",
    )
    expect(reader.state["add"] == 10.0, "the second checkpoint's state is the first's")
    for _ in range(2):
        checkpointer.remove(path)


@check(world_sizes=SIZES)
def check_neighbours(subject: CheckpointSubject) -> None:
    """Removing or replacing a checkpoint keeps others whose names begin or end the same."""
    subject.run(_in_group, _remove_among_neighbours, subject.folder)


def _remove_among_neighbours(checkpointer: Checkpointer, rank: int, folder: str) -> None:
    names = ("step=1", "step=10", "step=1.best", "last-step=1", "step=11")
    for add, name in enumerate(names):
        _save(checkpointer, rank, f"{folder}/{name}", float(add))
    _save(checkpointer, rank, f"{folder}/step=11", 7.0)
    checkpointer.remove(f"{folder}/step=1")
    checkpointer.wait()
    for value, name in zip((1.0, 2.0, 3.0, 7.0), names[1:]):
        found = _refused(lambda name=name: checkpointer.open(f"{folder}/{name}"))  # type: ignore[misc]  # bound now
        expect(not found, f"removing 'step=1' has also removed {name!r}")
        expect(
            checkpointer.open(f"{folder}/{name}").state["add"] == value, f"{name!r} is another checkpoint now"
        )
    expect(_refused(lambda: checkpointer.open(f"{folder}/step=1")), "'step=1' is still there")


@check(world_sizes=SIZES)
def check_reader_between_saves(subject: CheckpointSubject) -> None:
    """A reader that was opened before another save to its path reads the earlier checkpoint, or refuses."""
    subject.run(_in_group, _read_after_the_next_save, f"{subject.folder}/one")


def _read_after_the_next_save(checkpointer: Checkpointer, rank: int, path: str) -> None:
    _save(checkpointer, rank, path)
    reader = checkpointer.open(path)
    _save(checkpointer, rank, path, 10.0)
    checkpointer.wait()
    weight = torch.zeros(3, 4)
    if not _refused(lambda: reader.read({"model/weight": weight})):
        wrong = not torch.equal(weight, _tensors()["model/weight"]) or reader.state["add"] != 0.0
        expect(
            not wrong,
            "a reader that was opened before a save mixes the tensors of one with the state of the other",
        )


@check(world_sizes=(1,))
def check_lets_go(subject: CheckpointSubject) -> None:
    """Saving, reading and closing leak no open files, threads, tensors or readers."""
    within, afterwards = subject.run(_held_after_rounds, f"{subject.folder}/one")[0]
    expect_nothing_left(within, "save and read")
    expect_nothing_left(afterwards, "checkpointer that was closed")


def _held_after_rounds(subject: CheckpointSubject, path: str) -> tuple[list[_Held], list[_Held]]:
    """Return counts after each of five rounds with one checkpointer, and after each of four checkpointers."""
    lives = []
    for rounds in (5, 1, 1, 1):
        within = _in_group(subject, _save_and_read, path, rounds)
        lives.append((within, _held()))
    return lives[0][0], [afterwards for _, afterwards in lives]


def _save_and_read(checkpointer: Checkpointer, rank: int, path: str, rounds: int) -> list[_Held]:
    held = []
    for _ in range(rounds):
        _save(checkpointer, rank, path)
        checkpointer.open(path).read({"model/weight": torch.zeros(3, 4)})
        held.append(_held())
    return held


def _held() -> _Held:
    return count_held(tensors=torch.Tensor, readers=CheckpointReader)


@check(world_sizes=(1,))
def check_killed_while_replacing(subject: CheckpointSubject) -> None:
    """If a save is killed at any change of a file, the earlier checkpoint or its own is complete."""
    if not hasattr(os, "fork"):
        raise NotApplicable("this system has no fork")
    found = subject.alone(_kill_at_each_change, subject.folder)
    for index, (change, read) in enumerate(found):
        expect(
            read in (0.0, 10.0),
            f"a save that was killed before change {index} of a file, {change}, leaves no checkpoint: {read}",
        )


_CHANGES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
)
_MOST_CHANGES = 80
"""Maximum number of changes to try, so that the check takes seconds even with many files."""


def _kill_at_each_change(subject: CheckpointSubject, folder: str) -> list[tuple[str, Any]]:
    """Kill a save before each change of a file; return (the change, what can be read afterwards) for each."""
    found = []
    for index in range(_MOST_CHANGES):
        path = f"{folder}/killed-{index}/one"
        os.mkdir(f"{folder}/killed-{index}")
        _work_alone(subject, _save, 0, path)
        note = Path(f"{folder}/change-{index}")
        child = os.fork()
        if not child:
            _save_until_killed(subject, path, index, note)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        found.append((note.read_text(), _work_alone(subject, _state_or_refusal, path)))
    return found


def _work_alone(subject: CheckpointSubject, work: Callable[..., Any], *args: Any) -> Any:
    checkpointer = subject.load()(LocalCollectives(torch.device("cpu")))
    try:
        return work(checkpointer, *args)
    finally:
        checkpointer.close()


def _save_until_killed(subject: CheckpointSubject, path: str, index: int, note: Path) -> None:
    """Replace the checkpoint at `path`, and kill this process right before file change number `index`."""
    changes = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal changes
        if event not in _CHANGES and not (
            event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
        ):
            return
        if changes == index:
            changes = -1_000_000  # don't count the write of the note below
            note.write_text(event)
            os.kill(os.getpid(), signal.SIGKILL)
        changes += 1

    status = 1
    try:
        sys.addaudithook(count)
        _work_alone(subject, _save, 0, path, 10.0)
        status = 0
    finally:
        os._exit(status)


def _state_or_refusal(checkpointer: Checkpointer, path: str) -> Any:
    try:
        reader = checkpointer.open(path)
        weight = torch.zeros(3, 4)
        reader.read({"model/weight": weight})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    add = reader.state["add"]
    return (
        add
        if torch.equal(weight, _tensors()["model/weight"] + add)
        else "tensors of one checkpoint and state of the other"
    )


@check(world_sizes=SIZES)
def check_snapshot(subject: CheckpointSubject) -> None:
    """Saved values are those at the time of `save`, even if tensors and states change right after it."""
    subject.run(_in_group, _save_and_change, f"{subject.folder}/one")


def _save_and_change(checkpointer: Checkpointer, rank: int, path: str) -> None:
    tensors, saved = _tensors(), _tensors()
    state: dict[str, Any] = {"list": [1], "small": torch.zeros(2)}
    own: dict[str, Any] = {"list": [rank]}
    checkpointer.save(path, Checkpoint(tensors, state, own))
    for tensor in tensors.values():
        tensor.zero_()
    for changing in (state, own):
        changing["list"].append(7)
    state["small"].fill_(7)
    reader = checkpointer.open(path)
    read = {key: torch.zeros_like(value) for key, value in saved.items()}
    reader.read(read)
    for key, value in saved.items():
        expect(_bits(read[key]) == _bits(value), f"{key} was changed after save, and the change was saved")
    expect(
        reader.state["list"] == [1] and not reader.state["small"].any(),
        "a later change of the state was saved",
    )
    kept = reader.rank_state(rank)
    expect(kept is not None and kept["list"] == [rank], f"a later change of rank {rank}'s state was saved")


@check(world_sizes=SIZES)
def check_turn(subject: CheckpointSubject) -> None:
    """Removals and actions of `when_saved` that follow a save run after the checkpoint is complete."""
    subject.run(_in_group, _save_and_follow, f"{subject.folder}/one", f"{subject.folder}/two")


def _save_and_follow(checkpointer: Checkpointer, rank: int, old: str, new: str) -> None:
    _save(checkpointer, rank, old)
    checkpointer.wait()
    seen: list[bool] = []
    _save(checkpointer, rank, new)
    checkpointer.when_saved(lambda: seen.append(Path(new).exists()))
    checkpointer.remove(old)
    expect(
        Path(old).exists() or Path(new).exists(),
        "the old checkpoint is deleted before the new one is complete",
    )
    checkpointer.poll()
    checkpointer.wait()
    expect(seen == [True], f"when_saved called its action before the new checkpoint was complete: {seen}")
    expect(not Path(old).exists(), "the old checkpoint still exists after its removal")


@check(world_sizes=SIZES)
def check_failure(subject: CheckpointSubject) -> None:
    """A save that fails raises CheckpointError on every rank, and keeps the earlier checkpoint."""
    former = f"{subject.folder}/former"
    for rank, weight in enumerate(subject.run(_in_group, _fail_to_replace, former)):
        expect(
            weight == _tensors()["model/weight"].tolist(),
            f"after a save that failed, rank {rank} reads {weight}",
        )
    Path(subject.folder, "file").write_text("no folder")
    for rank, was_reported in enumerate(
        subject.run(_in_group, _save_into_a_file, f"{subject.folder}/file/one")
    ):
        expect(was_reported, f"rank {rank} gets no error when a save fails")


class _Unsaveable:
    """A value that no checkpoint can hold."""

    def __reduce__(self) -> Any:
        raise TypeError("this can't be saved")


def _fail_to_replace(checkpointer: Checkpointer, rank: int, path: str) -> list[Any]:
    """Save twice, the second time something that can't be saved; return the tensor that can be read then."""
    _save(checkpointer, rank, path)
    checkpointer.wait()
    unsaveable = Checkpoint(
        {"model/weight": torch.zeros(3, 4)}, {"none": _Unsaveable()}, {"none": _Unsaveable()}
    )

    def save_and_wait() -> None:
        checkpointer.save(path, unsaveable)
        checkpointer.wait()

    with suppress(Exception):  # the other half of the check is about the class of the error
        save_and_wait()
    weight = torch.zeros(3, 4)
    checkpointer.open(path).read({"model/weight": weight})
    return weight.tolist()


def _save_into_a_file(checkpointer: Checkpointer, rank: int, path: str) -> bool:
    def save_and_wait() -> None:
        _save(checkpointer, rank, path)
        checkpointer.wait()

    return _refused(save_and_wait)


@check(world_sizes=SIZES)
def check_refuses(subject: CheckpointSubject) -> None:
    """A missing checkpoint, an unknown key and another shape raise CheckpointError on every rank."""
    for rank, answers in enumerate(subject.run(_in_group, _provoke, f"{subject.folder}/one")):
        for what, refused in answers.items():
            expect(refused, f"{what} doesn't raise CheckpointError on rank {rank}")


def _provoke(checkpointer: Checkpointer, rank: int, path: str) -> dict[str, bool]:
    _save(checkpointer, rank, path)
    reader = checkpointer.open(path)
    filled = torch.full((3, 4), 9.0)
    unknown = {"model/weight": filled, "model/other": torch.zeros(1)}
    misshapen = {"model/weight": filled, "model/small": torch.zeros(3), "model/half": torch.zeros(5)}
    tried = _refused(lambda: reader.read(unknown)) and _refused(lambda: reader.read(misshapen))
    expect(tried and bool((filled == 9).all()), "a read that is refused has filled some of its targets")
    return {
        "a path without a checkpoint": _refused(lambda: checkpointer.open(f"{path}-not")),
        "a key that isn't in it": _refused(lambda: reader.read({"model/other": torch.zeros(1)})),
        "a tensor of another shape": _refused(lambda: reader.read({"model/weight": torch.zeros(4, 3)})),
    }


def _refused(what: Callable[[], Any]) -> bool:
    try:
        what()
    except CheckpointError:
        return True
    except Exception:
        return False
    return False


@check(world_sizes=SIZES)
def check_refuses_damage(subject: CheckpointSubject) -> None:
    """If one of its files is missing, truncated or has a flipped bit, opening or reading raises CheckpointError."""
    path = Path(subject.folder, "one")
    subject.run(_in_group, _save, str(path))
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    expect(bool(files), f"no file is at {path} after saving")
    alone = replace(subject, world_size=1)
    for file in files:
        content = file.read_bytes()
        flipped = content[:-1] + bytes([content[-1] ^ 1]) if content else None
        half = content[: len(content) // 2]
        for damage, left in (("missing", None), ("cut in half", half), ("changed in its last bit", flipped)):
            file.unlink()
            if left is not None:
                file.write_bytes(left)
            (refused,) = alone.run(_in_group, _open_and_read, str(path))
            expect(refused, f"with {file.name} {damage}, it is opened and read without a CheckpointError")
            file.write_bytes(content)


def _open_and_read(checkpointer: Checkpointer, rank: int, path: str) -> bool:
    read = {key: torch.zeros_like(value) for key, value in _tensors().items()}
    return _refused(lambda: checkpointer.open(path).read(read))


@check(world_sizes=(2,))
def check_other_world_size(subject: CheckpointSubject) -> None:
    """A checkpoint of two ranks, with sharded tensors, is read by one rank."""
    path = f"{subject.folder}/one"
    subject.run(_in_group, _save_sharded, path)
    (read,) = replace(subject, world_size=1).run(_in_group, _read_whole, path)
    whole, own, none, world_size = read
    expect(whole == torch.arange(16.0).reshape(4, 4).tolist(), f"a sharded tensor is read as {whole}")
    expect(own == {"rank": 1}, f"rank 1's state is read as {own}")
    expect(none is None, "there is a state of a rank that didn't exist")
    expect(world_size == 2, f"it says that {world_size} ranks wrote it")


def _save_sharded(checkpointer: Checkpointer, rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
    checkpointer.save(path, Checkpoint({"model/weight": sharded}, {}, {"rank": rank}))


def _read_whole(checkpointer: Checkpointer, rank: int, path: str) -> tuple[Any, ...]:
    reader = checkpointer.open(path)
    weight = torch.zeros(4, 4)
    reader.read({"model/weight": weight})
    own: Mapping[str, Any] | None = reader.rank_state(1)
    return weight.tolist(), None if own is None else dict(own), reader.rank_state(5), reader.world_size
