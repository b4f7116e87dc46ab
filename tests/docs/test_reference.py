"""The API reference has an entry for each name of `stratagem` and for each strategy class."""

import re
from importlib import import_module
from pathlib import Path

import stratagem
from stratagem.sdk.catalogue import load_catalogue

PAGES = Path(__file__).parents[2] / "docs"


def entries() -> set[str]:
    """Return the paths of all entries that mkdocstrings renders."""
    pages = "\n".join(page.read_text() for page in PAGES.rglob("*.md"))
    return set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))


def test_each_name_of_stratagem_has_an_entry():
    by_name = {path.rpartition(".")[2]: path for path in entries()}
    missing = []
    for name in stratagem.__all__:
        value = getattr(stratagem, name)
        if getattr(value, "__module__", "") == "stratagem.errors":
            continue  # the entry of that module shows them all
        module, _, attribute = by_name.get(name, "").rpartition(".")
        if not module or getattr(import_module(module), attribute) is not value:
            missing.append(name)
    assert "stratagem.errors" in entries()
    assert missing == [], "add `::: module.NAME` to docs/reference/python.md or protocols.md"


def test_each_strategy_class_has_an_entry():
    classes = {each.target.replace(":", ".") for each in load_catalogue().of_kind("strategy")}
    assert len(classes) > 15
    assert sorted(classes - entries()) == [], "add `::: module.CLASS` to docs/reference/python.md"
