"""The copy of the code that a run uses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from stratagem_places import snapshot
from stratagem_places.snapshot import source_of, take_snapshot

from stratagem.errors import ConfigError


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def copied(folder: Path) -> set[str]:
    """Files that are copies, not reached by a link."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(folder))
        for path in found
        if not any(above.is_symlink() for above in path.parents if folder in above.parents)
    }


def test_code_is_copied_and_the_rest_linked(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "root/runs/a/place/code"
    write(
        root,
        "net.py",
        "pkg/blocks.py",
        "pkg/weights.bin",
        "data/big.bin",
        ".venv/x.py",
        "env/pyvenv.cfg",
        "env/y.py",
    )
    write(root, "runs/a/place/output/x.txt", "runs/a/config.yaml", "__pycache__/net.pyc")
    assert source_of(str(root)) == (str(root), "")
    assert take_snapshot(str(root), str(target)) == 2
    assert copied(target) == {"net.py", "pkg/blocks.py"}
    assert (target / "data/big.bin").read_text() == "data/big.bin"
    assert (target / "pkg/weights.bin").read_text() == "pkg/weights.bin"
    assert not (target / "__pycache__").exists()
    (root / "net.py").write_text("changed")
    assert (target / "net.py").read_text() == "net.py"


def test_in_git_code_is_what_git_has_or_would_add(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "copy"
    write(root, "net.py", "table.csv", "sub/train.py", "cache/x.py", "new.py", "runs/b/config.yaml")
    write(root, "out/place/output/x.txt", "out/place/code/net.py", "gone.py")
    (root / ".gitignore").write_text("cache\n")
    git(root, "init")
    git(root, "add", "net.py", "table.csv", "sub", "gone.py", ".gitignore")
    git(root, "commit", "-m", "x")
    (root / "net.py").write_text("not committed")
    (root / "gone.py").unlink()
    assert source_of(str(root / "sub")) == (str(root), "sub")
    take_snapshot(str(root), str(target))
    assert copied(target) == {"net.py", "table.csv", "sub/train.py", "new.py", ".gitignore"}
    assert (target / "net.py").read_text() == "not committed"
    assert (target / "cache").is_symlink()
    assert not (target / ".git").exists()


def test_large_files_are_linked_and_too_many_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    write(root, "a.py", "b.py", "long.txt")
    monkeypatch.setattr(snapshot, "MOST_BYTES", 5)
    assert take_snapshot(str(root), str(tmp_path / "copy")) == 2
    assert (tmp_path / "copy/long.txt").is_symlink()
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    with pytest.raises(ConfigError, match="more than 1 files that look like code"):
        take_snapshot(str(root), str(tmp_path / "other"))
