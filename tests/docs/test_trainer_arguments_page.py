"""docs/guides/trainer-arguments.md is what its generator prints."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated():
    path = ROOT / "docs/gen/trainer_arguments.py"
    spec = importlib.util.spec_from_file_location("trainer_arguments_page", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (ROOT / "docs/guides/trainer-arguments.md").read_text() == generator.page(), "run `make hooks`"
