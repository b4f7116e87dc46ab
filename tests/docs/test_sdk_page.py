"""The public surface is what docs/sdk.md and docs/gen/surface.txt say: it changes on purpose only."""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("sdk_page_generator", ROOT / "docs/gen/sdk.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_is_current(generator):
    assert (ROOT / "docs/sdk.md").read_text() == generator.page(), "run `make sdk`"


def test_the_surface_changes_on_purpose_only(generator):
    kept = (ROOT / "docs/gen/surface.txt").read_text().splitlines()
    now = generator.surface().splitlines()
    gone, new = sorted({*kept} - {*now}), sorted({*now} - {*kept})
    assert (gone, new) == ([], []), (
        "what plugins import has changed: where that is meant, run `make sdk`, and raise API_VERSION if something is "
        "gone or takes other arguments"
    )


def test_every_name_has_a_sentence(generator):
    page = generator.page()
    assert [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_no_name_is_in_two_modules(generator):
    names = [name for module in generator.sdk_modules() for name in import_module(module).__all__]
    assert sorted({name for name in names if names.count(name) > 1}) == []
