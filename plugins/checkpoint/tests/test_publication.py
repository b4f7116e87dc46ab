import os

import pytest
import torch
from stratagem_checkpoint.filesystem import filesystem_for
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST, publish, temporary

from stratagem import Checkpoint

TOKEN = "0123456789abcdef"


@pytest.fixture
def filesystem():
    return LocalFilesystem(MANIFEST)


def test_another_writer_at_work_is_left_alone(filesystem, checkpointer, tmp_path):
    with temporary(filesystem, str(tmp_path / "a")) as folder:
        checkpointer.save(str(tmp_path / "b"), Checkpoint({}, {"step": 1}))
        assert os.path.isdir(folder)
        filesystem.write(os.path.join(folder, MANIFEST), [b"{}"])
        publish(filesystem, folder, str(tmp_path / "a"))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_what_dead_writers_left_is_swept_whatever_its_name(checkpointer, tmp_path):
    (tmp_path / f".epoch-1.tmp-{TOKEN}").mkdir()
    (tmp_path / f".epoch-1.tmp-{TOKEN}" / "tensors-00000.safetensors").write_bytes(b"half")
    checkpointer.save(str(tmp_path / "epoch-2"), Checkpoint({}))
    assert os.listdir(tmp_path) == ["epoch-2"]


def test_folders_that_only_look_alike_are_not_swept(checkpointer, tmp_path):
    (tmp_path / f".mine.tmp-{TOKEN}").mkdir()
    (tmp_path / f".mine.tmp-{TOKEN}" / "notes.txt").write_text("precious")
    (tmp_path / ".other.tmp-1").mkdir()
    checkpointer.save(str(tmp_path / "c"), Checkpoint({}))
    assert sorted(os.listdir(tmp_path)) == [f".mine.tmp-{TOKEN}", ".other.tmp-1", "c"]


def test_a_checkpoint_left_aside_is_found_and_kept_for_its_own_name(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "last"), Checkpoint({"w": torch.ones(2)}, {"step": 1}))
    (tmp_path / "last").rename(tmp_path / f".last.old-{TOKEN}")
    assert checkpointer.open(str(tmp_path / "last")).state == {"step": 1}
    checkpointer.save(str(tmp_path / "other"), Checkpoint({}))
    assert checkpointer.open(str(tmp_path / "last")).state == {"step": 1}
    checkpointer.save(str(tmp_path / "last"), Checkpoint({}, {"step": 2}))
    assert checkpointer.open(str(tmp_path / "last")).state == {"step": 2}
    assert sorted(os.listdir(tmp_path)) == ["last", "other"]


def test_removing_takes_what_was_left_aside_too(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "last"), Checkpoint({}))
    (tmp_path / "last").rename(tmp_path / f".last.old-{TOKEN}")
    checkpointer.remove(str(tmp_path / "last"))
    assert os.listdir(tmp_path) == []


def test_this_machine_swaps_directories_in_one_step(filesystem, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not filesystem.exchange(str(tmp_path / "a"), str(tmp_path / "b")):
        pytest.skip("no renameat2 with RENAME_EXCHANGE here")
    assert os.listdir(tmp_path / "a") == ["b"]
    assert os.listdir(tmp_path / "b") == ["a"]


@pytest.mark.parametrize(
    ("path", "plain"),
    [("/a/b", "/a/b"), ("/a//b/", "/a/b"), ("file:///a/b", "/a/b"), ("local:///a/b", "/a/b")],
)
def test_local_paths(path, plain):
    filesystem, found = filesystem_for(path, MANIFEST)
    assert isinstance(filesystem, LocalFilesystem)
    assert found == plain


def test_relative_paths_are_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert filesystem_for("runs/c", MANIFEST)[1] == str(tmp_path / "runs" / "c")
    assert filesystem_for("~/c", MANIFEST)[1] == os.path.expanduser("~/c")
