"""Rank 0 publishes only what it sees, whole, in its own file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stratagem_checkpoint.checked_files import write_checked
from stratagem_checkpoint.commit import commit
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST, temporary

from stratagem.errors import CheckpointError


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (os.unlink, r"seen from rank 0 .* is incomplete: state-00001\.json is missing"),
        (lambda path: os.truncate(path, 3), r"state-00001\.json has 3 bytes instead of 9"),
        (lambda path: Path(path).write_bytes(b"[1,2,3,5]"), r"state-00001\.json"),
    ],
    ids=["missing", "short", "changed"],
)
def test_what_rank_0_does_not_see_is_not_published(damage, words: str, tmp_path: Path) -> None:
    """As where another node wrote to a disk of its own."""
    filesystem, target = LocalFilesystem(MANIFEST), str(tmp_path / "last")
    with temporary(filesystem, target) as folder:
        files = [
            write_checked(filesystem, folder, f"state-0000{rank}.json", [b"[1,2,3,4]"]) for rank in (0, 1)
        ]
        damage(filesystem.join(folder, files[1].name))
        with pytest.raises(CheckpointError, match=words):
            commit(filesystem, folder, target, {"format": 1}, files, "the checkpoint")
    assert os.listdir(tmp_path) == []
