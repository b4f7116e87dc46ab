"""A rank's own folder on the drive: made, removed, and removed later where the process was killed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stratagem_deepspeed.drive import OwnFolders, remove_forgotten

pytestmark = pytest.mark.without_engine

HOLD = """
import sys
from stratagem_deepspeed.drive import OwnFolders
own = OwnFolders({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": sys.argv[1]}}})
print(own.paths[0], flush=True)
sys.stdin.read()
"""


def config(drive: Path, *, optimizer: Path | None = None) -> dict[str, Any]:
    zero = {"offload_param": {"device": "nvme", "nvme_path": str(drive)}}
    zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(optimizer or drive)}
    return {"zero_optimization": zero}


def test_two_on_one_drive_have_different_folders_until_they_are_closed(tmp_path: Path) -> None:
    trees = [config(tmp_path), config(tmp_path)]
    first, second = (OwnFolders(tree) for tree in trees)
    assert len({*first.paths, *second.paths}) == 2
    for own, tree in ((first, trees[0]), (second, trees[1])):
        for section in ("offload_param", "offload_optimizer"):
            assert tree["zero_optimization"][section]["nvme_path"] == str(own.paths[0])
        (own.paths[0] / "some.swp").touch()
    gone, kept = first.paths[0], second.paths[0]
    first.close()
    assert not gone.exists()
    assert (kept / "some.swp").exists()
    second.close()
    assert not list(tmp_path.iterdir())


def test_each_drive_has_one(tmp_path: Path) -> None:
    drives = [tmp_path / "first", tmp_path / "second"]
    for drive in drives:
        drive.mkdir()
    own = OwnFolders(config(drives[0], optimizer=drives[1]))
    assert [path.parent for path in own.paths] == drives
    del own
    gc.collect()
    assert not [path for drive in drives for path in drive.iterdir()]


def test_nothing_is_made_for_what_is_on_the_cpu(tmp_path: Path) -> None:
    zero = {"offload_param": {"device": "cpu", "nvme_path": str(tmp_path)}, "offload_optimizer": None}
    assert OwnFolders({"zero_optimization": zero}).paths == []
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_and_no_other(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        (left / "some.swp").touch()
        other = tmp_path / "stratagem-of-another"
        other.mkdir()
        remove_forgotten(str(tmp_path))
        assert (left / "some.swp").exists(), "its process lives"
        process.kill()
        process.wait()
        assert left.exists()
        remove_forgotten(str(tmp_path))
    assert list(tmp_path.iterdir()) == [other]


def test_a_forked_process_removes_nothing(tmp_path: Path) -> None:
    own = OwnFolders(config(tmp_path))
    child = os.fork()
    if child == 0:
        own.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert own.paths[0].is_dir()
    own.close()
