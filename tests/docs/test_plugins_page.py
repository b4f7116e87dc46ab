"""docs/plugins.md is what the distributions say of themselves."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("plugins_page_generator", ROOT / "docs/gen/plugins.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (ROOT / "docs/plugins.md").read_text()
    assert text == generator.page(), "run `make plugins`"
    rows = [line for line in text.splitlines() if line.startswith("| `stratagem-")]
    assert len(rows) == 1 + len(list(ROOT.glob("plugins/*/pyproject.toml")))
