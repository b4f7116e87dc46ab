"""`stratagem example` and `stratagem demo` work in any folder, and overwrite nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from stratagem_cli.main import main

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_written_is_the_example_of_the_repository(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["example", "digits"]) == 0
    assert capfd.readouterr().out == "digits.py: stratagem fit digits.py:Digits\n"
    text = (ROOT / "examples/digits.py").read_text()
    assert (tmp_path / "digits.py").read_text() == text.replace("examples/digits.py", "digits.py")
    assert main(["example", "digits"]) == 0


def test_examples_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    assert capfd.readouterr().out.startswith("digits  recognises handwritten digits")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "there is no example 'digit'; available: digits"),
        ("digits", "digits.py exists already, and isn't the example: move it, or use another folder"),
    ],
)
def test_what_is_refused(name: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "digits.py").write_text("mine = 1\n")
    assert main(["example", name]) == 2
    assert capfd.readouterr().err == f"Error: {message}\n"
    assert (tmp_path / "digits.py").read_text() == "mine = 1\n"


def test_the_demo_trains(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 0
    out, err = capfd.readouterr()
    assert out.startswith("stratagem fit digits.py:Digits --max-epochs 10 --strategy ddp")
    assert "val_acc" in out + err
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_demo_without_its_images_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stratagem_trainer.commands.examples.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "pip install 'stratagem[examples]'" in capfd.readouterr().err
