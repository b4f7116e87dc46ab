"""docs/coming-from-*.md are generated, and every name in their tables is there, or is absent, as they say."""

import importlib
import importlib.util
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import stratagem
from stratagem import RunConfig

ROOT = Path(__file__).parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("coming_from", ROOT / "docs/gen/coming_from.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()
SOURCES = GENERATOR.sections()


def owner(modules, name):
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)


def is_there(modules, name):
    """Say whether a name, as "Class.method(argument)", is there."""
    cls, member, argument = GENERATOR.NAME.fullmatch(name).group("owner", "member", "argument")
    found = owner(modules, cls)
    if found is None or (member and not hasattr(found, member)):
        return False
    if argument is None:
        return True
    parameters = inspect.signature(getattr(found, member) if member else found).parameters
    further = {field.name for field in fields(RunConfig)} if "further" in parameters else set()
    return argument in parameters or argument in further


def callbacks():
    return [importlib.import_module(name) for name in ("stratagem_trainer.callbacks", "stratagem_callbacks")]


@pytest.mark.parametrize("source", SOURCES)
def test_the_page_is_generated(source):
    page = (ROOT / f"docs/coming-from-{source}.md").read_text()
    assert page == GENERATOR.page(source), "run `make coming-from`"


def test_what_migrate_says_is_generated():
    assert GENERATOR.OTHERS.read_text() == GENERATOR.others(), "run `make coming-from`"


@pytest.mark.parametrize("source", SOURCES)
def test_every_name_of_ours_is_there(source):
    rows = GENERATOR.rows(source)
    missing = [name for row in rows for name in row.ours if not is_there([stratagem, *callbacks()], name)]
    assert missing == []


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_absent_says_what_to_do_and_is_absent(source):
    rows = [row for row in GENERATOR.rows(source) if row.kind == "absent"]
    assert [row.theirs for row in rows if not row.why] == []
    ours = {"fabric": "Runtime", "accelerate": "Runtime", "hf-trainer": "Trainer"}[source]
    there = [ours + GENERATOR.rest(name) for row in rows for name in row.theirs if GENERATOR.rest(name)]
    assert [name for name in there if is_there([stratagem], name)] == []


@pytest.mark.parametrize("source", SOURCES)
def test_every_name_of_theirs_is_there_where_they_are_installed(source):
    for package in SOURCES[source]["packages"]:
        if importlib.util.find_spec(package.split(".")[0]) is not None:
            modules = [importlib.import_module(package)]
            break
    else:
        pytest.skip(f"{SOURCES[source]['packages'][0]} is not installed")
    listed = [name for row in GENERATOR.rows(source) for name in row.theirs]
    assert [name for name in listed if not is_there(modules, name)] == []
    assert len(listed) == len(set(listed))
    whole = SOURCES[source].get("complete")  # a class all of whose public methods and arguments have a row
    if whole:
        cls = owner(modules, whole)
        arguments = set(inspect.signature(cls).parameters)
        arguments = {f"{whole}({name})" for name in arguments}
        methods = {
            f"{whole}.{name}"
            for name in dir(cls)
            if not name.startswith("_") and callable(getattr(cls, name))
        }
        assert sorted((arguments | methods) - set(listed)) == []


def test_the_tables_are_worth_reading():
    for source in SOURCES:
        rows = GENERATOR.rows(source)
        assert len(rows) > 30
        assert {row.kind for row in rows} == {"same", "renamed", "absent"}
        assert [row.why for row in rows if re.search(r"[A-Z]", row.why[:1]) or row.why.endswith(".")] == []
