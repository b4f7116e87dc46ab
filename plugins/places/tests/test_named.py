"""Named places: which file, which entry and which option counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from stratagem_places.named import named_options, named_places

from stratagem.errors import UnknownNameError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's folder of settings; the working directory is another one."""
    for name in ("work", "home/stratagem"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STRATAGEM_PLACES", raising=False)
    (tmp_path / "home/stratagem/places.yaml").write_text("local: {a: {x: user}, b: {x: user}}\n")
    return tmp_path / "home/stratagem"


def test_the_working_directory_comes_before_the_user_and_the_variable_before_both(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named_options("local", "a") == {"x": "user"}
    Path("places.yaml").write_text("local: {a: {x: work}}\nother: {b: {x: work}}\n")
    assert named_options("local", "a") == {"x": "work"}
    # A name of the user's file stays reachable.
    assert named_options("local", "b") == {"x": "user"}
    Path("given.yaml").write_text("local: {c: {x: given}}\n")
    monkeypatch.setenv("STRATAGEM_PLACES", "given.yaml")
    assert [each.path for each in named_places()] == ["given.yaml"]
    assert named_options("local", "c") == {"x": "given"}
    for name in ("a", "b"):
        with pytest.raises(UnknownNameError, match=r"given\.yaml has no"):
            named_options("local", name)
