import pickle
import sys

import pytest

from stratagem.errors import BrokenPluginError
from stratagem.plugin.component import FEATURES, KINDS, Availability, Capabilities, Component


def component(**kwargs):
    return Component(**{"kind": "strategy", "name": "x", "target": "m:C", "summary": "an x", **kwargs})


def test_names_are_its_own_then_aliases_then_presets():
    assert component(aliases=("y",), presets={"z": {"a": 1}}).names() == ("x", "y", "z")


def test_an_unknown_kind_is_refused_with_the_kinds():
    with pytest.raises(
        ValueError, match=r"'x' has kind 'stratgy'; allowed are \['strategy', 'axis', 'accelerator'"
    ):
        component(kind="stratgy")
    assert [component(kind=kind).kind for kind in KINDS] == list(KINDS)


def test_an_unknown_feature_is_refused_with_the_features():
    with pytest.raises(
        ValueError, match=r"unknown features \['levitation'\]; allowed are \['changes_between_steps'"
    ):
        Capabilities(features=frozenset({"closure", "levitation"}))
    assert Capabilities(features=frozenset(FEATURES)).features == frozenset(FEATURES)


def test_load_imports_the_target(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "component_target.py").write_text("class Made: pass")
    record = component(target="component_target:Made")
    assert "component_target" not in sys.modules
    assert record.load().__name__ == "Made"
    del sys.modules["component_target"]


@pytest.mark.parametrize(
    ("target", "error"),
    [("a_module_that_is_not_there:C", ModuleNotFoundError), ("math:NoSuchName", AttributeError)],
)
def test_load_names_the_component_and_what_the_import_raised(target, error):
    with pytest.raises(
        BrokenPluginError, match=rf"'x' of nowhere 0 can't be loaded: {error.__name__}"
    ) as raised:
        component(target=target).load()
    assert type(raised.value.__cause__) is error


def test_records_are_frozen_and_picklable():
    record = component(presets={"z": {"a": 1}}, capabilities=Capabilities(features=frozenset({"closure"})))
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(AttributeError):
        record.name = "y"
    with pytest.raises(AttributeError):
        Availability(True, "here").ok = False
