"""Checkpoints that a resident process writes while training goes on."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from background_saves import Full, FullOnRank1, Gated, shut
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST
from threads import on_threads
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from stratagem import Checkpoint, LocalCollectives
from stratagem.errors import CheckpointError, ConfigError


@pytest.fixture
def background():
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")), async_=True)
    yield checkpointer
    checkpointer.close(failed=True)


def on(filesystem, collectives=None):
    class Checkpointer(DirectoryCheckpointer):
        def filesystem(self, path):
            return filesystem(MANIFEST), path

    return Checkpointer(collectives or LocalCollectives(torch.device("cpu")), async_=True)


def every_kind():
    weight = torch.randn(5, 4)
    tensors = {
        "model/weight": weight,
        "model/tied": weight,
        "model/transposed": torch.randn(4, 3).T,
        "model/scalar": torch.tensor(7),
        "model/empty": torch.ones(0, 3),
        "model/half": torch.randn(3).bfloat16(),
        "model/flags": torch.tensor([True, False, True]),
        "model/double": torch.randn(3, dtype=torch.float64),
        "model/complex": torch.randn(3, dtype=torch.complex128).conj(),
        "model/negative": torch.randn(3, dtype=torch.complex64).conj().imag,
    }
    return Checkpoint(tensors, {"epoch": 3, "small": torch.randn(4), "none": torch.ones(0)}, {"rng": b"\x01"})


def test_the_files_are_those_of_a_save_that_waits(background, checkpointer, tmp_path):
    checkpoint = every_kind()
    checkpointer.save(str(tmp_path / "waited"), checkpoint)
    background.save(str(tmp_path / "background"), checkpoint)
    background.wait()
    waited, written = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in ("waited", "background")
    )
    assert waited == written
    assert sorted(os.listdir(tmp_path)) == ["background", "waited"]


def test_what_writes_never_imports_torch(background, tmp_path):
    """That would take its first save longer than all else."""
    background.save(str(tmp_path / "c"), every_kind())
    background.wait()
    mapped = Path(f"/proc/{background._background.writer.pid}/maps").read_text()
    assert "xxhash" in mapped
    assert "torch" not in mapped


def test_what_changes_after_save_is_not_in_it(tmp_path):
    checkpointer = on(Gated)
    try:
        weight, state = torch.zeros(1000), {"small": torch.zeros(3), "list": [0]}
        (tmp_path / "shut").touch()
        checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": weight}, state))
        weight.fill_(1)
        state["small"].fill_(1)
        state["list"].append(1)
        checkpointer.poll()
        assert not (tmp_path / "c").exists()
        (tmp_path / "shut").unlink()
        reader = checkpointer.open(str(tmp_path / "c"))  # waits
        reader.read({"w": (read := torch.ones(1000))})
        assert read.sum() == 0
        assert reader.state["small"].tolist() == [0, 0, 0]
        assert reader.state["list"] == [0]
    finally:
        checkpointer.close()


def test_a_hundred_saves_while_tensors_change(background, tmp_path):
    """tests/soak/saves.py has a thousand."""
    weights = [torch.zeros(20_000) for _ in range(5)]
    tensors = {f"w{number}": weight for number, weight in enumerate(weights)}
    for step in range(100):
        for weight in weights:
            weight.fill_(step)
        background.save(str(tmp_path / "c"), Checkpoint(tensors, {"step": step}))
        for weight in weights:
            weight.fill_(-1)
        if step % 10 == 0:
            reader = background.open(str(tmp_path / "c"))
            read = {key: torch.empty(20_000) for key in tensors}
            reader.read(read)
            assert reader.state["step"] == step
            assert all(bool((each == step).all()) for each in read.values())


def test_a_buffer_grows_with_what_is_saved(background, tmp_path):
    for size in (10, 100_000, 5):
        background.save(str(tmp_path / "c"), Checkpoint({"w": torch.full((size,), float(size))}))
        background.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(size))})
        assert bool((read == size).all())


def test_a_full_disk_is_reported_at_the_next_step_and_again_by_wait(tmp_path):
    checkpointer = on(Full)
    path = str(tmp_path / "c")
    try:
        checkpointer.save(path, Checkpoint({"w": torch.ones(3)}))
        reported = poll_until_raised(checkpointer)
        assert (
            str(reported)
            == f"the checkpoint {path} can't be written: OSError: [Errno 28] No space left on device"
        )
        assert reported.exit_code == 1
        checkpointer.poll()  # once
        with pytest.raises(CheckpointError, match="No space left"):
            checkpointer.wait()
        checkpointer.wait()
        assert os.listdir(tmp_path) == []
    finally:
        checkpointer.close()


def poll_until_raised(checkpointer):
    while True:  # until the test's own timeout
        try:
            checkpointer.poll()
        except CheckpointError as error:
            return error
        time.sleep(0.005)


def test_the_failure_is_raised_by_close(tmp_path):
    checkpointer = on(Full)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3)}))
    with pytest.raises(CheckpointError, match="No space left"):
        checkpointer.close()


def test_a_killed_writer_leaves_the_former_checkpoint_whole(tmp_path):
    checkpointer = on(Gated)
    path = str(tmp_path / "c")
    try:
        checkpointer.save(path, Checkpoint({"w": torch.ones(3)}))
        checkpointer.wait()
        (tmp_path / "shut").touch()
        checkpointer.save(path, Checkpoint({"w": torch.zeros(3)}))
        os.kill(checkpointer._background.writer.pid, signal.SIGKILL)
        (tmp_path / "shut").unlink()
        reported = poll_until_raised(checkpointer)
        assert "which writes checkpoints in the background, ended by SIGKILL before" in str(reported)
        with pytest.raises(CheckpointError, match="ended by SIGKILL"):
            checkpointer.wait()
        checkpointer.open(path).read({"w": (read := torch.zeros(3))})
        assert read.tolist() == [1, 1, 1]
        # Who goes on gets another process, which also tidies up.
        checkpointer.save(path, Checkpoint({"w": torch.full((3,), 2.0)}))
        checkpointer.open(path).read({"w": read})
        assert read.tolist() == [2, 2, 2]
        assert os.listdir(tmp_path) == ["c"]
    finally:
        checkpointer.close()


def test_a_writer_that_died_idle_is_started_again(background, tmp_path):
    for step in range(2):
        background.save(str(tmp_path / "c"), Checkpoint({"w": torch.full((3,), float(step))}))
        background.wait()
        pid = background._background.writer.pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # all its threads are gone
    background.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(3))})
    assert read.tolist() == [1, 1, 1]


def test_a_writer_that_is_still_dying_is_started_again(background, tmp_path):
    """For a moment, a process that was killed is neither there nor gone."""
    for step in range(4):
        background.save(str(tmp_path / "c"), Checkpoint({"w": torch.full((2**20,), float(step))}))
        background.wait()
        os.kill(background._background.writer.pid, signal.SIGKILL)
    background.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(2**20))})
    assert read[0] == 3


def test_what_waits_for_a_save_takes_its_turn_behind_it(tmp_path):
    checkpointer = on(Gated)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    seen = []
    try:
        checkpointer.save(old, Checkpoint({"w": torch.ones(3)}))
        checkpointer.wait()
        checkpointer.when_saved(lambda: seen.append("at once"))
        (tmp_path / "shut").touch()
        checkpointer.save(new, Checkpoint({"w": torch.ones(3)}))
        checkpointer.when_saved(lambda: seen.append(os.path.exists(new)))
        checkpointer.remove(old)
        checkpointer.poll()
        assert seen == ["at once"]
        assert os.path.exists(old)
        (tmp_path / "shut").unlink()
        checkpointer.wait()
        assert seen == ["at once", True]
        assert not os.path.exists(old)
    finally:
        checkpointer.close()


def remove_on_rank_1(collectives, old, new):
    checkpointer = DirectoryCheckpointer(collectives, async_=True)
    try:
        for path in (old, new):
            checkpointer.save(path, Checkpoint({f"w{collectives.rank}": torch.ones(3)}))
        if collectives.rank == 1:
            checkpointer.remove(old)
        checkpointer.wait()
    finally:
        checkpointer.close()


def test_rank_0_alone_removes(tmp_path):
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    on_threads(2, lambda collectives: remove_on_rank_1(collectives, old, new))
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_one_that_was_closed_saves_again(background, tmp_path):
    for step in range(2):
        background.save(str(tmp_path / "c"), Checkpoint({"w": torch.full((3,), float(step))}))
        background.close()
    background.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(3))})
    assert read.tolist() == [1, 1, 1]


def test_what_waits_for_a_save_that_fails_is_not_done(checkpointer, tmp_path):
    failing = on(Full)
    old = str(tmp_path / "old")
    seen = []
    checkpointer.save(old, Checkpoint({"w": torch.ones(3)}))
    failing.save(str(tmp_path / "new"), Checkpoint({"w": torch.ones(3)}))
    failing.when_saved(lambda: seen.append("called"))
    failing.remove(old)
    with pytest.raises(CheckpointError, match="No space left"):
        failing.close()
    assert seen == []
    assert os.path.exists(old)


def test_what_can_not_be_saved_is_refused_by_save(background, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file, not a checkpoint directory"):
        background.save(str(tmp_path / "file"), Checkpoint({"w": torch.ones(3)}))
    with pytest.raises(CheckpointError, match=r"state\['x'\] can't be saved"):
        background.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3)}, {"x": object()}))
    background.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3)}))
    background.wait()
    assert sorted(os.listdir(tmp_path)) == ["c", "file"]


def test_a_file_system_of_this_process_alone_is_written_at_once(background):
    path = "memory://here/alone"
    background.save(path, Checkpoint({"w": torch.ones(3)}))
    background.open(path).read({"w": (read := torch.zeros(3))})
    assert read.tolist() == [1, 1, 1]


def test_async_is_true_or_false():
    with pytest.raises(ConfigError, match=r"checkpoint.async='yes' must be true or false"):
        DirectoryCheckpointer(LocalCollectives(torch.device("cpu")), async_="yes")


def test_nothing_is_left_running(tmp_path):
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")), async_=True)
    pid = checkpointer._background.writer.pid
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3)}))
    checkpointer.close()
    assert not Path(f"/proc/{pid}").exists()
    assert os.listdir(tmp_path) == ["c"]


# Several ranks ------------------------------------------------------------------------------------------


def save_sharded(collectives, path, kind):
    checkpointer = on({"local": LocalFilesystem, "rank 1": FullOnRank1}[kind], collectives)
    mesh = init_device_mesh("cpu", (collectives.world_size,))
    whole = torch.arange(70.0).reshape(10, 7)
    tensors = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "copy": torch.ones(3)}
    try:
        for step in range(3):
            checkpointer.save(path, Checkpoint(tensors, {"step": step}, {"rank": collectives.rank}))
            tensors["w"].to_local().add_(1)
            tensors["copy"].add_(1)
        checkpointer.close()
    except CheckpointError as error:
        checkpointer.close(failed=True)
        return str(error)


@pytest.mark.long
def test_a_checkpoint_of_several_ranks_has_all_their_parts(ranks, checkpointer, tmp_path):
    path = str(tmp_path / "c")
    assert ranks(save_sharded, 3, path=path, kind="local") == [None] * 3
    reader = checkpointer.open(path)
    reader.read({"w": (whole := torch.zeros(10, 7)), "copy": (copy := torch.zeros(3))})
    assert torch.equal(whole, torch.arange(70.0).reshape(10, 7) + 2)
    assert copy.tolist() == [3, 3, 3]
    assert [reader.rank_state(rank) for rank in range(3)] == [{"rank": rank} for rank in range(3)]
    assert reader.state == {"step": 2}
    assert os.listdir(tmp_path) == ["c"]


def test_one_rank_that_can_not_write_fails_all(ranks, tmp_path):
    path = str(tmp_path / "c")
    messages = ranks(save_sharded, 2, path=path, kind="rank 1")
    assert messages[0] == messages[1]
    assert "No space left on device" in messages[0]
    assert os.listdir(tmp_path) == []


def lose_a_writer(collectives, path, rank):
    checkpointer = on(Gated, collectives)
    checkpoint = Checkpoint({f"w{collectives.rank}": torch.ones(3)})
    checkpointer.save(path, checkpoint)
    checkpointer.wait()
    Path(shut(f"{path}/file")).touch()
    checkpointer.save(path, checkpoint)
    if collectives.rank == rank:
        os.kill(checkpointer._background.writer.pid, signal.SIGKILL)
    collectives.barrier()
    Path(shut(f"{path}/file")).unlink(missing_ok=True)
    try:
        checkpointer.wait()
    except CheckpointError as error:
        return str(error)
    finally:
        checkpointer.close(failed=True)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_killed_writer_of_any_rank_fails_all_and_keeps_the_former(ranks, checkpointer, tmp_path, rank):
    path = str(tmp_path / "c")
    messages = ranks(lose_a_writer, 2, path=path, rank=rank)
    assert messages[0] == messages[1]
    assert "ended by SIGKILL" in messages[0]
    assert sorted(checkpointer.open(path).tensors) == ["w0", "w1"]


def die_while_saving(collectives, path, rank, pids):
    checkpointer = on(Gated, collectives)
    Path(pids, str(collectives.rank)).write_text(str(checkpointer._background.writer.pid))
    checkpoint = Checkpoint({f"w{collectives.rank}": torch.full((3,), 2.0)})
    checkpointer.save(path, checkpoint)
    if collectives.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    Path(shut(f"{path}/file")).unlink(missing_ok=True)
    checkpointer.close(failed=True)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_rank_that_dies_leaves_the_former_and_no_process(
    ranks, checkpointer, tmp_path, tmp_path_factory, rank
):
    path = str(tmp_path / "c")
    checkpointer.save(path, Checkpoint({"w": torch.ones(3)}))
    (tmp_path / "shut").touch()
    pids = tmp_path_factory.mktemp("pids")
    outcome = ranks(die_while_saving, 2, check=False, path=path, rank=rank, pids=str(pids))
    assert outcome.codes[rank] == -signal.SIGKILL
    processes = [Path("/proc", file.read_text()) for file in pids.iterdir()]
    assert len(processes) == 2
    deadline_s = time.monotonic() + 120
    while any(process.exists() for process in processes) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(process.exists() for process in processes)
    assert sorted(checkpointer.open(path).tensors) == ["w"]
    checkpointer.save(path, Checkpoint({"w": torch.ones(3)}))
    assert os.listdir(tmp_path) == ["c"]
