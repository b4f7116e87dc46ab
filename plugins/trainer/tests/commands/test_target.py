"""TARGET is checked before anything runs, and loaded in workers."""

import pickle
import sys
from textwrap import dedent

import pytest
from stratagem_cli.typed import Text
from stratagem_trainer.commands.module_spec import ModuleSpec
from stratagem_trainer.commands.target import Target

from stratagem.errors import ConfigError, TargetError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net.py", "'net.py' names no class: choose net.py:Net, net.py:Plain"),
        ("none.py:Net", "there is no file"),
        ("net.py:Nett", "has no class 'Nett'; nearest: Net"),
        ("net.py:Other", "has no class 'Other'; there is Net, Plain"),
        ("broken.py:Net", "isn't Python: '(' was never closed, line 1"),
        ("nowhere.module:Net", "there is no module 'nowhere'"),
        ("pack.nowhere:Net", "there is no module 'pack.nowhere'"),
        ("pack.inner:Missing", "has no class 'Missing'; there is Inner"),
        ("Net", "names no class: write it as"),
        ("a-b:Net", "neither a file ending in .py nor a module's name"),
        (":Net", "names no class in a file or module"),
        ("net.py:", "names no class in a file or module"),
    ],
)
def test_refused_without_running_it(net, folder, text, message):
    (folder / "broken.py").write_text("print(\n")
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("raise RuntimeError('was run')\n")
    (folder / "pack" / "inner.py").write_text("raise RuntimeError('was run')\nclass Inner: pass\n")
    with pytest.raises(TargetError) as caught:
        Target.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "if True:\n    class Net: pass\n",
        "try:\n    import nothing\nexcept ImportError:\n    class Net: pass\n",
        "from elsewhere import Net\n",
        "from elsewhere import *\n",
        "from elsewhere import Base as Net\n",
        "Net = make()\n",
        "Other, Net = make()\n",
        "def __getattr__(name): ...\n",
    ],
)
def test_names_of_any_origin_pass(folder, source):
    (folder / "made.py").write_text(source)
    assert Target.parse("made.py:Net").name == "Net"


def test_a_file_is_loaded_as_the_module_of_its_name_and_pickles(net):
    cls = Target.parse("net.py:Net").load()
    assert cls.__module__ == "net"
    assert sys.modules["net"].Net is cls
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert Target.parse(str(net) + ":Net").load() is cls


def test_a_file_finds_its_neighbours(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour.py").write_text("SIZE = 3\n")
    (folder / "sub" / "apart.py").write_text(
        "import stratagem\nfrom neighbour import SIZE\nclass Apart(stratagem.Module):\n    size = SIZE\n"
    )
    assert Target.parse("sub/apart.py:Apart").load().size == 3


def test_a_module_in_the_working_directory(net):
    assert Target.parse("net:Net").load().__name__ == "Net"


def test_a_file_may_not_take_a_used_modules_name(folder):
    (folder / "json.py").write_text("class Net: pass\n")
    with pytest.raises(TargetError, match="has the name of the module 'json', which is imported already"):
        Target.parse("json.py:Net").load()


@pytest.mark.parametrize(
    ("name", "message"),
    [("Plain", "is a class derived from Module, not from stratagem.Module"), ("NUMBER", "is a int")],
)
def test_what_is_no_module_is_refused(net, name, message):
    with pytest.raises(TargetError, match=message):
        Target.parse(f"net.py:{name}").load()


def test_the_traceback_of_a_failing_import_survives_pickling(folder):
    (folder / "failing.py").write_text(
        dedent("""
            def deep():
                raise ValueError("in the user's file")

            class Net: pass
            deep()
        """)
    )
    with pytest.raises(TargetError, match="can't be imported: ValueError: in the user's file") as caught:
        Target.parse("failing.py:Net").load()
    kept = pickle.loads(pickle.dumps(caught.value)).cause_traceback
    assert 'failing.py", line 3, in deep' in kept
    assert "importlib" not in kept
    assert "failing" not in sys.modules


def test_the_module_is_made_with_typed_settings(net):
    spec = ModuleSpec(
        Target.parse("net.py:Net"), {"hidden": Text("7"), "lr": Text("1e-3"), "name": Text("12")}
    )
    module = pickle.loads(pickle.dumps(spec))()
    assert (module.net.out_features, module.lr) == (7, 1e-3)
    assert spec.resolved() == {"hidden": 7, "lr": 1e-3, "name": "12"}


def test_a_function_that_makes_a_module(net):
    assert ModuleSpec(Target.parse("net.py:make_net"), {"hidden": Text("5")})().net.out_features == 5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Net", {"hiden": Text("7")}, "Net has no setting 'model.hiden'; nearest: hidden"),
        ("Net", {"hidden": Text("many")}, "model.hidden='many' is of the wrong type: Net wants int"),
        ("Net", {"hidden": 1.5}, "model.hidden=1.5 is of the wrong type: Net wants int"),
        ("Bare", {"hidden": Text("7")}, "Bare has no setting 'model.hidden'; there is none"),
        ("Passing", {"other": Text("7")}, "Passing has no setting 'model.other'"),
        ("Needing", {}, "Needing needs size: pass --set model.size=VALUE"),
    ],
)
def test_settings_that_the_class_doesnt_take(net, name, settings, message):
    net.write_text(
        net.read_text()
        + dedent("""
            class Bare(stratagem.Module):
                pass

            class Passing(stratagem.Module):
                def __init__(self, size: int = 1, **kwargs):
                    super().__init__(**kwargs)

            class Needing(stratagem.Module):
                def __init__(self, size: int):
                    super().__init__()
        """)
    )
    with pytest.raises(ConfigError) as caught:
        ModuleSpec(Target.parse(f"net.py:{name}"), settings)()
    assert message in str(caught.value)


def test_a_function_that_makes_something_else_is_refused(net):
    net.write_text(net.read_text() + "\ndef other():\n    return 3\n")
    with pytest.raises(TargetError, match="returned a int, not a "):
        ModuleSpec(Target.parse("net.py:other"))()


def test_without_settings_no_parser_is_imported(net, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    ModuleSpec(Target.parse("net.py:Net"))()
