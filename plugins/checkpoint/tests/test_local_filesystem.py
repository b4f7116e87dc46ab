"""What `LocalFilesystem` promises: what it wrote is on the disk, with the folder that names it."""

import os

import pytest
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST, publish


@pytest.fixture
def filesystem():
    return LocalFilesystem(MANIFEST)


@pytest.fixture
def synced(monkeypatch):
    """Paths in the order in which they were brought to the disk; the real call is made, too."""
    paths = []
    fsync = os.fsync

    def noted(descriptor):
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc here, which says what a descriptor is of")
    monkeypatch.setattr(os, "fsync", noted)
    return paths


def test_a_written_file_is_on_the_disk_when_the_call_returns(filesystem, synced, tmp_path):
    path = str(tmp_path / "file")
    assert filesystem.write(path, [b"ab", memoryview(b"cde")]) == 5
    assert synced == [path]
    assert filesystem.size(path) == 5
    with pytest.raises(FileExistsError):
        filesystem.write(path, [b""])


def test_syncing_a_folder_keeps_the_names_in_it(filesystem, synced, tmp_path):
    filesystem.sync(str(tmp_path))
    assert synced == [str(tmp_path)]


def test_a_rename_is_on_the_disk_with_the_folder_it_went_to(filesystem, synced, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "from").mkdir()
    filesystem.move(str(tmp_path / "from"), str(tmp_path / "to" / "new"))
    assert synced == [str(tmp_path / "to")]
    assert (tmp_path / "to" / "new").is_dir()


def test_an_exchange_is_on_the_disk(filesystem, synced, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    if not filesystem.exchange(str(tmp_path / "a"), str(tmp_path / "b")):
        pytest.skip("no renameat2 with RENAME_EXCHANGE here")
    assert synced == [str(tmp_path)]


def test_every_folder_that_is_made_is_on_the_disk(filesystem, synced, tmp_path):
    filesystem.make_directory(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert sorted(synced) == sorted(map(str, (tmp_path, tmp_path / "a", tmp_path / "a" / "b")))


def test_a_published_checkpoints_files_come_before_its_name(filesystem, synced, tmp_path):
    folder = str(tmp_path / "written")
    filesystem.make_directory(folder)
    filesystem.write(os.path.join(folder, MANIFEST), [b"{}"])
    synced.clear()
    publish(filesystem, folder, str(tmp_path / "named"))
    assert synced == [folder, str(tmp_path)]


def test_removing_takes_what_makes_it_a_checkpoint_first(filesystem, tmp_path, monkeypatch):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    for name in (MANIFEST, "state.json"):
        (folder / name).touch()

    def dies(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        filesystem.remove(str(folder))
    monkeypatch.undo()
    assert os.listdir(folder) == ["state.json"]
    filesystem.remove(str(folder))
    filesystem.remove(str(folder))
    assert not folder.exists()


def test_a_link_to_a_folder_is_removed_and_the_folder_kept(filesystem, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    filesystem.remove(str(tmp_path / "link"))
    assert os.listdir(tmp_path) == ["folder"]


def test_what_is_not_there_is_empty_and_has_no_size(filesystem, tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    missing = str(tmp_path / "missing")
    assert (filesystem.names(missing), filesystem.size(missing), filesystem.exists(missing)) == (
        [],
        None,
        False,
    )
    assert filesystem.names(str(tmp_path / "file")) == []
    assert filesystem.size(str(tmp_path)) is None
    (tmp_path / "dangling").symlink_to(missing)
    assert filesystem.exists(str(tmp_path / "dangling"))
    assert filesystem.names(str(tmp_path)) == ["dangling", "file"]


def test_a_locked_folder_is_refused_to_others_until_it_is_released(filesystem, tmp_path):
    folder = str(tmp_path / "held")
    os.mkdir(folder)
    with filesystem.hold(folder) as held:
        assert held is not None
        assert filesystem.hold(folder) is None
        assert not filesystem.remove_unheld(folder)
        assert os.path.isdir(folder)
    assert filesystem.remove_unheld(folder)
    assert not os.path.isdir(folder)
    assert not filesystem.remove_unheld(folder)
    assert filesystem.hold(folder) is None
