"""docs/hooks.md is what the generator prints, and leaves nothing undocumented."""

import importlib.util
import sys
from pathlib import Path

import pytest

from stratagem.plugin import hookspecs, requests

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("hooks_page_generator", ROOT / "docs/gen/hooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def all_hooks(generator):
    return [*generator.hooks_of(hookspecs.RunHooks), *generator.hooks_of(hookspecs.DiscoveryHooks)]


def test_the_page_is_current(generator):
    assert (ROOT / "docs/hooks.md").read_text() == generator.page(), "run `make hooks`"


def test_every_hook_is_on_the_page(generator):
    names = [hook.name for hook in all_hooks(generator)]
    assert names[:5] == list(hookspecs.RUN_HOOKS)
    page = generator.page()
    assert [name for name in names if f"\n### {name}\n" not in page] == []


def test_every_hook_and_each_of_its_arguments_is_documented(generator):
    for hook in all_hooks(generator):
        assert hook.summary.endswith("."), hook.name
        assert hook.argument_docs.keys() == hook.arguments.keys(), hook.name
        assert all(hook.argument_docs.values()), hook.name


def test_every_field_of_every_request_is_documented(generator):
    kinds = [kind for hook in all_hooks(generator) for kind in hook.arguments.values()]
    records = [kind for kind in kinds if hasattr(requests, kind)] + ["Clipping"]
    assert len(records) == 6
    missing = [
        f"{record}.{field.name}"
        for record in records
        for field in generator.fields_of(record)
        if not field.doc
    ]
    assert missing == []


def test_every_hook_of_a_run_takes_one_request_and_returns_what_the_reference_describes(generator):
    protocols = (ROOT / "docs/reference/protocols.md").read_text()
    for hook in generator.hooks_of(hookspecs.RunHooks):
        assert list(hook.arguments) == ["request"]
        assert f"\n## {hook.answer}" in protocols
