"""docs/guides/module-hooks.md is what its generator prints."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated():
    spec = importlib.util.spec_from_file_location("module_hooks_page", ROOT / "docs/gen/module_hooks.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (ROOT / "docs/guides/module-hooks.md").read_text() == generator.page(), "run `make hooks`"
