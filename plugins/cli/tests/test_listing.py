"""What is installed is listed with its origin, and why it can't run here."""

import json

import pytest
from stratagem_cli.main import main

from stratagem.sdk.catalogue import API_VERSION


@pytest.fixture
def listed(capsys):
    def run(*args, code=0):
        assert main([*args, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def by_name(records):
    return {record["name"]: record for record in records}


def test_strategies(listed, site):
    site.offer(
        "others",
        '"strategy", "vendored", "v:S", "needs a library", requires=("no_such_lib",), install_hint="pip install x"',
        '"strategy", "newer", "v:S", "of tomorrow", api_version=99',
        '"strategy", "quantum", "v:S", "elsewhere", capabilities=Capabilities(accelerators=("qpu",))',
    )
    plugin = site.path / "others_plugin.py"
    plugin.write_text("from stratagem.plugin.component import Capabilities\n" + plugin.read_text())
    found = by_name(listed("strategies"))
    assert found["ddp"] == {
        "name": "ddp",
        "aliases": [],
        "presets": [
            "ddp_bf16",
            "ddp_find_unused_parameters_false",
            "ddp_find_unused_parameters_true",
            "ddp_fork",
            "ddp_fp16",
            "ddp_hierarchical_sgd",
            "ddp_notebook",
            "ddp_post_local_sgd",
            "ddp_powersgd",
            "ddp_spawn",
        ],
        "distribution": "stratagem-ddp",
        "version": "0.1.0",
        "summary": found["ddp"]["summary"],
        "runs_here": True,
        "why": found["ddp"]["why"],
        "accelerators": ["*"],
    }
    assert "cpu" in found["ddp"]["why"]
    assert not any(found[name]["runs_here"] for name in ("vendored", "newer", "quantum"))
    assert found["vendored"]["why"] == "no_such_lib isn't installed; pip install x"
    assert found["newer"]["why"] == f"written for plugin API 99; this core has {API_VERSION}"
    assert found["quantum"]["why"].startswith("works on qpu; available: ")


def test_accelerators(listed, site):
    site.offer("odd", '"accelerator", "odd", "odd_accelerator:Odd", "raises"')
    site.write("odd_accelerator", "raise OSError('driver too old')\n")
    found = by_name(listed("accelerators"))
    assert found["cpu"]["runs_here"] is True
    assert found["cpu"]["devices"] >= 1
    assert found["odd"]["runs_here"] is False
    assert "driver too old" in found["odd"]["why"]


def test_plugins_broken_left_out_and_with_commands_only(listed, site, monkeypatch):
    site.install("bad-plugin", "raise ImportError('no vendor')\n")
    site.install("Good_Plugin", "", version="2.5")
    site.install(
        "badcommands",
        """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_commands(cli):
            raise RuntimeError("no commands")
        """,
    )
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", "stratagem-mps")
    found = {record["distribution"]: record for record in listed("plugins")}
    assert found["stratagem-core"]["status"] == "ok"
    assert {"kind": "environment", "name": "single"} in found["stratagem-core"]["components"]
    assert found["stratagem-checkpoint"]["components"] == [{"kind": "checkpoint", "name": "directory"}]
    assert found["bad-plugin"]["status"] == "broken"
    assert found["bad-plugin"]["error"] == "ImportError: no vendor"
    assert (found["good-plugin"]["status"], found["good-plugin"]["version"]) == ("offers nothing", "2.5")
    assert (found["stratagem-testing"]["status"], found["stratagem-testing"]["commands"]) == (
        "ok",
        ["conformance", "new"],
    )
    assert found["badcommands"]["error"] == "RuntimeError: no commands"
    assert found["stratagem-mps"]["status"] == "left out"


def test_doctor(listed):
    report = listed("doctor")
    assert report["problems"] == []
    assert report["environment"]["name"] == "single"
    assert "gloo" in report["process_group_backends"]
    assert report["cores"] >= 1
    assert report["memory_bytes"] > 2**28
    assert any(accelerator["name"] == "cpu" for accelerator in report["accelerators"])
    digest = report["versions_digest"]
    assert len(digest) == 16
    assert listed("doctor")["versions_digest"] == digest


def test_doctor_finds_what_is_broken(listed, site):
    before = listed("doctor")["versions_digest"]
    site.install("bad-plugin", "raise ImportError('no vendor')\n")
    site.offer("second", '"strategy", "ddp", "second_strategy:S", "another ddp"')
    report = listed("doctor", code=1)
    assert "bad-plugin: ImportError: no vendor" in report["problems"]
    assert "strategy 'ddp' is offered by second and stratagem-ddp" in report["problems"]
    assert any("'ddp' of second 1.0 can't be loaded" in problem for problem in report["problems"])
    assert report["versions_digest"] != before


def test_doctor_tells_a_wrong_environment(listed, monkeypatch):
    monkeypatch.setenv("RANK", "nonsense")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    report = listed("doctor", code=1)
    assert any("RANK" in problem for problem in report["problems"])


@pytest.mark.parametrize("command", ["strategies", "accelerators", "plugins", "doctor"])
def test_tables_are_for_people(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command]) == 0
    assert "cpu" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["strategies", "accelerators", "plugins", "doctor"])
def test_piped_tables_obey_the_variable_for_the_width(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80


def test_what_runs_here_is_listed_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["accelerators"]) == 0
    here = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line[1:2].isalpha()][1:]
    assert here == sorted(here, reverse=True)
    assert {"yes", "no"} == set(here)


def test_doctor_begins_with_its_verdict(capsys, site):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("all is in order; runs here on ")
    assert "cpu" in out.splitlines()[0]
    assert " GiB" in out
    site.install("bad-plugin", "raise ImportError('no such thing')\n")
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.startswith("1 problem:\n  bad-plugin: ")


def test_brackets_in_a_table_are_shown_as_they_are(capsys, monkeypatch, site):
    monkeypatch.setenv("COLUMNS", "200")
    site.install("bad-plugin", "raise ImportError('[red]not markup[/red]')\n")
    assert main(["plugins"]) == 0
    assert "[red]not markup[/red]" in capsys.readouterr().out
