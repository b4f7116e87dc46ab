"""Tensors and arrays reach workers by shared pages: one copy for all, views as views, and writes unshared."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import data_tasks
import numpy as np
import pytest
import torch
from stratagem_launch.elastic import ElasticLauncher
from stratagem_launch.transfer import data_file
from stratagem_launch.transfer.pickling import dumps, loads
from torch import nn

import stratagem
from stratagem import LaunchPlan, Task
from stratagem.errors import UsageError

METHODS = ("forkserver", "spawn", "popen", "fork")
MIB = 1 << 20


@contextmanager
def sent(given: Any, folder: Path) -> Iterator[Any]:
    """Send something to this very process, as workers get it."""
    with closing(dumps(given, "spawn", str(folder))) as task:
        yield loads(task.content)


def test_many_views_of_one_memory_are_there_once(start_program: Any) -> None:
    # Held by a limit on memory: 8,192 copies would be 2 TiB, and one more than there is doesn't fit. Threads'
    # stacks and arenas count too, so that it must be far more than those.
    program = start_program(
        """
        import resource, sys
        import torch
        from data_tasks import sum_of
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            whole = torch.ones(8192, 8192)
            in_use = int(open("/proc/self/statm").read().split()[5]) * 4096
            resource.setrlimit(resource.RLIMIT_DATA, (in_use + (250 << 20), resource.RLIM_INFINITY))
            loader = DataLoader(list(whole), 64)
            print(ElasticLauncher(LaunchPlan(2)).launch(Task(sum_of, (loader,))), whole.sum().item())
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out.split()) == (0, [str(8192.0**2)] * 2), err


def test_views_stay_views_of_one_memory(tmp_path: Path) -> None:
    whole, array = torch.zeros(1000, 100), np.zeros((500, 100))
    given = {
        "rows": list(whole),
        "part": array[100:200, ::2],
        "same": torch.from_numpy(array),
        "array": array,
    }
    with sent(given, tmp_path) as got:
        got["rows"][3] += 1
        assert got["rows"][2].sum() == 0
        assert len({row.untyped_storage().data_ptr() for row in got["rows"]}) == 1
        got["array"][100] = 5
        assert got["part"][0].tolist() == [5.0] * 50
        assert got["same"][100].tolist() == [5.0] * 100
    assert whole.sum() == array.sum() == 0


def test_arrays_that_cannot_be_written_stay_so(tmp_path: Path) -> None:
    array = np.arange(10_000.0)
    array.flags.writeable = False
    with sent([array, array[::2]], tmp_path) as (whole, part):
        assert not whole.flags.writeable
        assert not part.flags.writeable
        np.testing.assert_array_equal(part, array[::2])


@pytest.mark.parametrize("size", [50_000, 1_000_000])
def test_the_launching_process_keeps_its_memory_to_itself(tmp_path: Path, size: int) -> None:
    tensor = torch.arange(float(size))
    array, place = tensor.numpy(), tensor.data_ptr()
    with sent(tensor, tmp_path) as got:
        tensor[1] = -1
        assert got[1] == 1
        got[2] = -2
        assert tensor[2] == 2
    assert tensor.data_ptr() == place == array.ctypes.data
    assert array[1] == -1
    torch.testing.assert_close(tensor[2:], torch.arange(2.0, size))


def test_a_thread_that_writes_meanwhile_loses_nothing(tmp_path: Path) -> None:
    # The launching process may train, or fill a buffer of experience, while workers are started.
    counts = torch.zeros(32 * MIB // 8, dtype=torch.float64)
    rows, done, over = counts.view(64, -1), [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            for row in rows:
                row.add_(1)
                done[0] += row.numel()

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(10):
            dumps(counts, "spawn", str(tmp_path)).close()
    finally:
        over.set()
        thread.join()
    assert counts.sum().item() == done[0] > 0


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux's")
def test_shared_memory_is_there_once(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests left open, else closed in the middle
    before, open_before = anonymous_bytes(), len(os.listdir("/proc/self/fd"))
    whole = stratagem.shared(torch.arange(64 * MIB // 4, dtype=torch.float32))
    assert (whole[-1], anonymous_bytes() < before + 4 * MIB, files_in_memory()) == (
        whole.numel() - 1,
        True,
        1,
    )
    with sent([whole, whole[5:], whole.numpy()[::2]], tmp_path) as (got, part, array):
        assert files_in_memory() == 1  # workers map the very file
        np.testing.assert_array_equal(array, whole[::2])
        got[5] = -1
        assert (part[0], whole[5]) == (-1, 5)
        torch.testing.assert_close(got[6:], whole[6:])
    whole.add_(1)  # this process's alone, and sent as a copy like other memory
    with sent(whole, tmp_path) as again:
        assert files_in_memory() == 2
        torch.testing.assert_close(again, whole)
    del again, whole, got, part, array
    assert files_in_memory() == 0
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_shared_takes_data_of_any_dtype_and_shape(tmp_path: Path) -> None:
    given = [
        torch.arange(12).view(3, 4).t(),
        torch.tensor(True),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.randn(7, 2).bfloat16()[::2],
        torch.empty(0, 3),
    ]
    for tensor in given:
        kept = tensor.clone()
        got = stratagem.shared(tensor)
        assert (got.dtype, got.shape) == (kept.dtype, kept.shape)
        assert torch.equal(got, kept)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux's")
def test_workers_map_shared_memory_itself() -> None:
    whole = stratagem.shared(torch.ones(MIB))
    launcher = ElasticLauncher(LaunchPlan(2))
    assert launcher.launch(Task(data_tasks.inode_of, (whole[9:],))) == data_tasks.inode_of(whole)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([1, 2], "shared got list"),
        (nn.Linear(2, 2).weight, "shared got Parameter: give it a torch.Tensor that holds data"),
        (torch.ones(3, requires_grad=True), "shared got a tensor that requires gradients"),
        (torch.ones(3).to_sparse(), "shared got a tensor on cpu with torch.sparse_coo: give it a dense one"),
        (torch.ones(3, device="meta"), "shared got a tensor on meta"),
    ],
)
def test_shared_refuses_what_is_no_data(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        stratagem.shared(wrong)
    assert said in str(refused.value)


def test_what_was_sent_can_be_shared_again(tmp_path: Path) -> None:
    # As by a data loader whose workers are spawned.
    tensor = torch.ones(MIB)
    with sent(tensor, tmp_path) as got:
        for each in (tensor, got):
            each.share_memory_()
            assert each.is_shared()
            assert each.sum() == MIB


def files_in_memory() -> int:
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "/memfd:stratagem" in line})


def anonymous_bytes() -> int:
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_a_module_gets_memory_of_its_own(tmp_path: Path) -> None:
    module = nn.Linear(100, 100)
    module.register_buffer("mean", torch.ones(10_000))
    module.weight.grad = torch.ones(100, 100)
    module.data = torch.ones(10_000)
    with sent(module, tmp_path) as got:
        for tensor in (got.weight, got.weight.grad, got.mean):
            assert tensor.untyped_storage().resizable()
        assert not got.data.untyped_storage().resizable()
        torch.testing.assert_close(got.weight, module.weight)


@pytest.mark.parametrize("method", METHODS)
def test_no_process_sees_the_writes_of_another(method: str, tmp_path: Path) -> None:
    tensor, array, module = torch.ones(100_000), np.ones(100_000), nn.Linear(200, 200)
    launcher = ElasticLauncher(LaunchPlan(2, start_method=method))
    seen = launcher.launch(Task(data_tasks.write_in_turn, ((tensor, array, module), str(tmp_path))))
    assert seen == [1.0, 1.0, float(module.weight.detach().max())]
    assert tensor.max() == array.max() == 1


def test_workers_that_are_started_again_get_the_same_data(tmp_path: Path) -> None:
    tensor = torch.ones(1_000_000)
    launcher = ElasticLauncher(LaunchPlan(1, max_restarts=1))
    assert launcher.launch(Task(data_tasks.fail_once, (tensor, str(tmp_path)))) == 1_000_000


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_an_array_that_is_a_map_stays_one(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    np.save(path, np.arange(100_000.0).reshape(1000, 100))
    array = np.load(path, mmap_mode=mode)
    with sent([array, list(array[200:400]), array[:, 7]], tmp_path) as (got, rows, column):
        assert type(got) is np.memmap
        assert got.flags.writeable == (mode != "r")
        assert maps_of(path) == 2  # ours, and one for all
        np.testing.assert_array_equal(got, array)
        np.testing.assert_array_equal(rows[5], array[205])
        np.testing.assert_array_equal(column, array[:, 7])
        if mode != "r":
            got[0] = -1
            assert array[0, 1] == np.load(path)[0, 1] == 1


def test_what_was_written_to_a_private_map_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    np.save(path, np.zeros(100_000))
    array = np.load(path, mmap_mode="c")
    array[50_000] = 3
    with sent(array, tmp_path) as got:
        assert got[50_000] == 3
        assert maps_of(path) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_tensor_that_is_a_map_stays_one(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "features.bin"
    np.arange(100_000.0, dtype=np.float32).tofile(path)
    tensor = torch.from_file(str(path), shared=shared, size=100_000)
    with sent([tensor, tensor[50_000:]], tmp_path) as (got, part):
        assert maps_of(path) == 2
        part[0] = -1
        assert (got[50_000], tensor[50_000], np.fromfile(path, np.float32)[50_000]) == (-1, 50_000, 50_000)
    os.remove(path)
    with sent(tensor, tmp_path) as got:
        torch.testing.assert_close(got, tensor)


def maps_of(path: Path) -> int:
    return data_tasks.maps(str(path))[0]


def test_memory_that_has_no_room_is_left_for_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(data_file, "free_memory_bytes", lambda: MIB // 4)
    tensor = torch.ones(100_000)
    with sent(tensor, tmp_path) as got:
        assert (tmp_path / "data.0").stat().st_mode & 0o777 == 0o600
        got[0] = 5
        assert tensor[0] == 1
    monkeypatch.setattr(
        data_file.shutil, "disk_usage", lambda folder: data_file.shutil._ntuple_diskusage(0, 0, 0)
    )
    with pytest.raises(UsageError, match=r"need 390\.6 KiB .*set TMPDIR.*read its data from files"):
        dumps(tensor, "spawn", str(tmp_path))


def test_a_full_folder_is_one_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    monkeypatch.setattr(os, "open", lambda *args: full)
    with pytest.raises(UsageError, match=r"don't fit into .*No space left on device.*set TMPDIR"):
        dumps(nn.Linear(100, 100), "spawn", str(tmp_path))


def test_no_process_can_change_what_workers_map(tmp_path: Path) -> None:
    task = dumps(torch.ones(100_000), "spawn", str(tmp_path))
    (file,) = task.buffers._written
    with pytest.raises(PermissionError):
        os.pwrite(file.descriptor, b"x", 0)
    task.close()
    assert not os.path.exists(file.path)
