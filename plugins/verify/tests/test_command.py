"""`stratagem verify`: report, JSON and exit codes."""

from __future__ import annotations

import json

import pytest
from stratagem_cli.main import main
from stratagem_verify.command import report
from stratagem_verify.session import Finding
from stratagem_verify.verification import Verification

FAULTY = "tests/support/verified_faults.py:SumLoss"


def test_a_faulty_module_as_a_report_and_as_json(pytestconfig, monkeypatch, capsys):
    monkeypatch.chdir(pytestconfig.rootpath)
    only = ["--only", "loss", "--only", "data"]
    assert main(["verify", FAULTY, "--strategy", "ddp", "--accelerator", "cpu", *only]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{FAULTY} under ddp on 2 × cpu, 32-true, compared with one process"
    assert lines[2].startswith("wrong  loss        isn't the mean over samples")
    assert lines[-1].startswith("1 wrong, 0 note, 2 right in ")
    assert "first difference between one process (A) and the ranks (B): Step 1: the gradients" in " ".join(
        lines
    )
    assert (
        main(["verify", FAULTY, "--strategy", "ddp", "--accelerator", "cpu", "--only", "data", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["strategy"], found["devices"], found["right"]) == ("ddp", 2, True)
    assert [each["question"] for each in found["findings"]] == ["run", "data"]


def test_own_loops(pytestconfig, monkeypatch, capsys):
    monkeypatch.chdir(pytestconfig.rootpath)
    loops = "tests/support/verified_loops.py"
    rest = ["--strategy", "ddp", "--accelerator", "cpu"]
    assert main(["verify", f"{loops}:right", *rest]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "right loop after it, all 4 tensors are equal to those of one process" in said
    assert main(["verify", f"{loops}:weighted_by_rank", *rest]) == 1
    assert "differs from one process's by" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", f"{loops}:without_loader", *rest]) == 0
    assert "read no batch from runtime.dataloader" in capsys.readouterr().out
    assert main(["verify", f"{loops}:right", *rest, "--only", "loss"]) == 2
    assert "--only is for modules, but TARGET is your own loop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([FAULTY], "name it, as in --strategy ddp"),
        ([FAULTY, "--strategy", "ddq"], "no strategy is called 'ddq'"),
        ([FAULTY, "--strategy", "ddp", "--only", "losses"], "there is no question 'losses'"),
        ([FAULTY, "--strategy", "ddp", "--num-nodes", "2"], "verify runs on this machine only"),
        ([FAULTY, "--strategy", "ddp", "--devices", "auto"], "--devices auto is not a number"),
        ([FAULTY, "--strategy", "single", "--devices", "2"], "one device per process"),
        (["nowhere.py:Model", "--strategy", "ddp"], "there is no file"),
    ],
)
def test_bad_input_gets_one_sentence(args, words, pytestconfig, monkeypatch, capsys):
    monkeypatch.chdir(pytestconfig.rootpath)
    assert main(["verify", *args]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("Error: ")
    assert words in reported


def test_what_is_wrong_comes_first():
    findings = (
        Finding("run", "right", "6 steps"),
        Finding("loss", "note", "draws"),
        Finding("resume", "wrong", "lost"),
    )
    lines = report("m.py:M", Verification("ddp", "cpu", 2, "32-true", 6, findings, 3.0)).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["wrong", "note", "right"]
