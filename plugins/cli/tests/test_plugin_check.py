"""`stratagem plugins check`: what is wrong with a distribution is said, each by its own finding."""

import json

import pytest
from stratagem_cli.main import main

GOOD = '"strategy", "good", "good_target:Strategy", "does it well"'


@pytest.fixture
def findings(capsys):
    def check(name, *words, code):
        assert main(["plugins", "check", name, "--json", *words]) == code
        printed = capsys.readouterr().out  # perhaps after what a plugin prints when it is imported here
        checked = json.loads(printed[printed.index("{") :])
        return {each["check"]: each for each in checked["findings"]}

    return check


def test_a_sound_plugin_passes_and_is_ready_for_an_index(site, findings, tmp_path):
    site.offer("good-one", GOOD, good_target="class Strategy: pass")
    index, badge = tmp_path / "index.json", tmp_path / "badge.json"
    found = findings("good-one", "--index", str(index), "--badge", str(badge), code=0)
    assert all(each["ok"] for each in found.values()), found
    assert json.loads(index.read_text()) == {"offers": {"strategy": {"good-one": ["good"]}}}
    assert json.loads(badge.read_text())["color"] == "brightgreen"


def test_each_fault_of_a_distribution_is_found(site, findings):
    site.offer(
        "bad",
        '"strategy", "ddp", "nowhere:Strategy", ""',
        '"strategy", "Shouts!", "no_target", "two\\nlines"',
        '"strategy", "auto", "bad_plugin:NUMBER", "reserved"',
        '"strategy", "tomorrow", "bad_plugin:later", "newer", api_version=99',
    )
    plugin = site.path / "bad_plugin.py"
    plugin.write_text(
        "import numpy\nprint('hello')\nNUMBER = 3\ndef stratagem_commands(cli): pass\ndef later(): pass\n"
        + plugin.read_text()
    )
    found = findings("bad", code=1)
    wrong = {name: each["detail"] for name, each in found.items() if not each["ok"]}
    assert wrong.keys() == {"light", "silent", "hooks", "names", "api_version", "summaries", "targets"}
    assert "imports numpy" in wrong["light"]
    assert "prints 'hello'" in wrong["silent"]
    assert wrong["hooks"] == "stratagem_commands lacks @hookimpl, so nothing calls it"
    for part in (
        "stratagem-ddp offers strategy 'ddp', too",
        "'Shouts!' isn't written in",
        "'auto' has a reserved",
    ):
        assert part in wrong["names"]
    assert "plugin API 99" in wrong["api_version"]
    for part in (
        "'no_target' isn't 'package.module:name'",
        "nowhere:Strategy ModuleNotFoundError",
        "bad_plugin:NUMBER",
    ):
        assert part in wrong["targets"]


@pytest.mark.parametrize(
    ("source", "check", "words"),
    [
        ("import no_such_library", "import", "no_such_library"),
        (
            "from stratagem.plugin.hookspecs import hookimpl\n@hookimpl\ndef stratagem_component(): return []",
            "hooks",
            "did you mean stratagem_components?",
        ),
        ("raise SystemExit(3)", "import", "SystemExit"),
        ("", "hooks", "implements no hook"),
    ],
)
def test_a_module_that_is_no_plugin_is_said_to_be_none(site, findings, source, check, words):
    site.install("odd", source)
    found = findings("odd", code=1)
    assert not found[check]["ok"]
    assert words in found[check]["detail"]


@pytest.mark.parametrize("version", ["0", "'2'", "True", "-1"])
def test_an_api_version_that_is_none_breaks_the_record(site, findings, version):
    site.offer("old", f'"strategy", "old", "old_plugin:x", "of yesterday", api_version={version}')
    found = findings("old", code=1)
    assert "write the number of the plugin API" in found["records"]["detail"]


def test_a_module_with_the_name_of_one_of_python_is_found(site, findings):
    site.offer("json-plugin", GOOD)
    (site.path / "json_plugin-1.0.dist-info" / "top_level.txt").write_text("json\n")
    assert (
        "has the name of a keyword or a module of Python"
        in findings("json-plugin", code=1)["names"]["detail"]
    )


def test_a_distribution_that_isnt_installed_is_refused_by_nearest_name(capsys):
    assert main(["plugins", "check", "stratagem-dpp"]) == 2
    assert "Did you mean stratagem-dp?" in capsys.readouterr().err
