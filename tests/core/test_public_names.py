"""The names that `stratagem` exports: listed, sorted, reachable, and typed alike."""

import ast
import inspect
from pathlib import Path

import pytest
import stratagem_cli
import stratagem_clusters
import stratagem_launch
import stratagem_testing
import stratagem_trainer
import stratagem_verify

import stratagem
from stratagem.names.facade import facade_names

SOURCE = Path(stratagem.__file__).read_text()


def test_all_is_sorted_and_without_doubles():
    assert stratagem.__all__ == sorted(set(stratagem.__all__), key=str)


@pytest.mark.parametrize("name", stratagem.__all__)
def test_a_name_is_there_and_documented(name):
    value = getattr(stratagem, name)
    assert not name.startswith("_") or name == "__version__"
    if inspect.isclass(value) or inspect.isfunction(value):
        assert (inspect.getdoc(value) or "").strip()


def test_type_checkers_see_the_same_names():
    branch = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "typing"
    }
    assert seen == set(stratagem.__all__) - facade_names().keys()


def test_type_checkers_see_the_same_things():
    branch = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    for node in branch.body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("stratagem."):
            module = __import__(node.module, fromlist=["_"])
            for alias in node.names:
                assert getattr(stratagem, alias.name) is getattr(module, alias.name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trainr"):
        stratagem.Trainr  # noqa: B018


def test_dir_lists_the_names():
    assert set(stratagem.__all__) <= set(dir(stratagem))


@pytest.mark.parametrize(
    "package",
    [
        stratagem_cli,
        stratagem_clusters,
        stratagem_launch,
        stratagem_testing,
        stratagem_trainer,
        stratagem_verify,
    ],
)
def test_dir_shows_what_is_imported_on_demand(package):
    assert len(set(package.__all__)) == len(package.__all__)  # ruff holds their order
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
