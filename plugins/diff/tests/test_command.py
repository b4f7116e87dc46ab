"""`stratagem diff`: sides that it trains itself, records, pages, JSON and exit codes."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from stratagem_cli.main import main
from stratagem_diff.run import ACCUMULATION, Run, with_common_batch

from stratagem.errors import UsageError

NET = f"{Path(__file__).with_name('trained.py')}:Net"
CPU = ("--accelerator", "cpu")
Captured = pytest.CaptureFixture[str]


def test_one_process_agrees_with_two_under_a_strategy(capsys: Captured) -> None:
    changes = ["--against", "ddp", "--against", "devices=2"]
    assert main(["diff", NET, *CPU, *changes]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"A: {NET}, strategy single, devices 1, accelerator cpu, {ACCUMULATION}=2"
    assert lines[1] == f"B: {NET}, strategy ddp, devices 2, accelerator cpu"
    assert lines[3].startswith("The runs agree: ")
    assert "note: " not in "".join(lines)


def test_a_wrong_gradient_is_named_as_json_and_on_a_page(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "diff.html"
    wrong = ["--against", f"target={NET.replace(':Net', ':WrongBias')}"]
    strategies = ["--strategy", "fsdp", "--devices", "2", "--against", "ddp"]
    command = ["diff", NET, *CPU, *strategies, *wrong, "--estimate", "--json", "--html", str(page)]
    assert main([*command, "--keep", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    first = found["differences"][0]
    assert (first["step"], first["kind"], first["name"]) == (1, "parameter gradient", "head.bias")
    assert (first["ranks"], round(first["ratio"], 3)) == ([1], 0.5)
    drawn = _Opened()
    drawn.feed(page.read_text())
    assert drawn.opened == ["head"]
    assert drawn.shades["body.0"] in ("shade-0", "shade-3")  # later steps may differ
    # The same from the records that were kept.
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "parameter 'head.bias' differs on rank 1" in capsys.readouterr().out


def test_another_checkout_of_the_code(tmp_path: Path, capsys: Captured) -> None:
    source = Path(__file__).with_name("trained.py")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        shutil.copy(source, tmp_path / name / "trained.py")
    changed = tmp_path / "new/trained.py"
    changed.write_text(changed.read_text().replace("nn.ReLU()", "nn.GELU()"))
    command = ["diff", "trained.py:Net", *CPU, "--cwd", str(tmp_path / "old"), "--estimate", "--steps", "1"]
    assert main([*command, "--against", f"cwd={tmp_path / 'new'}"]) == 1
    assert "the forward value of module 'body.1' (ReLU) differs" in capsys.readouterr().out


@pytest.mark.long
def test_dropout_differs_on_two_ranks_unless_it_is_off(capsys: Captured) -> None:
    command = ["diff", NET, *CPU, "--estimate", "--set", "model.dropout=0.5", "--steps", "1"]
    command += ["--against", "ddp", "--against", "devices=2"]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "the forward value of module 'body.2' (Dropout) differs" in said
    assert "other random numbers" in said
    assert main([*command, "--no-dropout"]) == 0


@pytest.mark.long
def test_another_precision_is_within_its_rounding(capsys: Captured) -> None:
    assert main(["diff", NET, *CPU, "--against", "precision=bf16-mixed"]) == 0
    assert "The runs agree: " in capsys.readouterr().out


@pytest.mark.long
def test_a_compiled_module_agrees(capsys: Captured) -> None:
    assert main(["diff", NET, *CPU, "--against", "compile", "--estimate"]) == 0
    assert "The runs agree: " in capsys.readouterr().out


def test_a_script_with_its_own_loop(capsys: Captured) -> None:
    script = str(Path(__file__).with_name("trained.py"))
    command = ["diff", script, *CPU, "--strategy", "ddp", "--devices", "2", "--against", "fsdp", "--estimate"]
    assert main(command) == 0
    assert "The runs agree: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([NET], "nothing to compare with: give --against"),
        ([NET, "--against", "colour=red"], "'colour' isn't a key; give the name of a strategy"),
        ([NET, "--against", "ddp", "--set", "lr"], "--set lr: write KEY=VALUE"),
        ([NET, "--against", "ddp", "--against", "devices=all"], "devices all isn't a number"),
        ([NET, "--against", "cwd=nowhere"], "side B runs in nowhere, which isn't a folder"),
        ([NET, "--against", "python=nowhere"], "side B can't be started by nowhere"),
        ([NET, "--strategy", "ddq", "--against", "ddp"], "no strategy is called 'ddq'"),
        (["one", "two", "--strategy", "ddp"], "--strategy is for runs, and A and B are records"),
        (["one", "two"], "one isn't a folder"),
        ([".", "--against", "ddp"], "give a second record"),
        ([NET, "--against", "ddp", "--html", "nowhere/page.html"], "there is no folder"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], words: str, capsys: Captured) -> None:
    assert main(["diff", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_sides_of_different_size_get_the_same_batch() -> None:
    a, b = (Run("x:Net", {"devices": count}) for count in ("2", "3"))
    made = with_common_batch(a, b)
    assert [run.settings for run in made] == [{ACCUMULATION: "3"}, {ACCUMULATION: "2"}]
    chosen = Run("x:Net", {"devices": "1"}, {ACCUMULATION: "8"})
    assert with_common_batch(chosen, b) == (chosen, b)
    with pytest.raises(UsageError, match="isn't a number"):
        with_common_batch(a, Run("x:Net", {"devices": "auto"}))


class _Opened(HTMLParser):
    """Which modules of a page are open, and their shades."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.shades: dict[str, str] = {}
        self._last: dict[str, str | None] = {}
        self._in_name = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "details":
            self._last = dict(attributes)
        self._in_name = tag == "b" and self.get_starttag_text() == "<b>" and bool(self._last)

    def handle_data(self, data: str) -> None:
        if self._in_name:
            self.shades[data] = str(self._last["class"]).split()[1]
            if "open" in self._last:
                self.opened.append(data)
            self._last, self._in_name = {}, False
