"""Everything public of Lightning is here with the same meaning, or in a table that says why not."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import stratagem_lightning as ours
from stratagem_lightning.absent import ABSENT, ARGUMENTS, MEMBERS
from stratagem_lightning.migration.lookup import where_is
from stratagem_lightning.names import MODULES

lightning = pytest.importorskip("lightning", reason="lightning, whose names are compared, isn't installed")

CLASSES = ("Trainer", "LightningModule", "Callback", "LightningDataModule", "Fabric")
PUBLIC = (
    *(
        "accelerators",
        "callbacks",
        "cli",
        "core",
        "loggers",
        "loops",
        "plugins",
        "profilers",
        "serve",
        "strategies",
    ),
    *("trainer", "trainer.states", "tuner", "utilities", "utilities.combined_loader", "utilities.exceptions"),
    *("utilities.grads", "utilities.rank_zero", "utilities.seed", "utilities.types"),
)


def names_of(module: str) -> list[str]:
    """What a module of Lightning's says is public, or else defines."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return list(found.__all__)
    kinds = {n: v for n, v in vars(found).items() if not n.startswith("_") and not inspect.ismodule(v)}
    return [name for name, value in kinds.items() if getattr(value, "__module__", "") == module]


@pytest.mark.parametrize("module", ["", "pytorch", "fabric", *(f"pytorch.{each}" for each in PUBLIC)])
def test_each_public_name_is_here_or_said_why_not(module) -> None:
    there = ".".join(filter(None, ("lightning", module)))
    parents = [".".join(there.split(".")[:n]) for n in range(2, there.count(".") + 2)]
    if any(parent in ABSENT for parent in parents):
        return
    lacking = [n for n in names_of(there) if not where_is(f"{there}.{n}") and f"{there}.{n}" not in ABSENT]
    assert lacking == []


def test_each_name_of_the_table_can_be_imported() -> None:
    for module, names in MODULES.items():
        here = import_module(".".join(filter(None, ("stratagem_lightning", module))))
        for name in names:
            assert getattr(here, name) is not None


@pytest.mark.parametrize("name", CLASSES)
def test_each_member_is_here_or_said_why_not(name) -> None:
    theirs, mine = getattr(lightning, name), getattr(ours, name)
    import torch

    known = set(dir(torch.nn.Module)) if name == "LightningModule" else set(dir(object))
    if name in ("Trainer", "Fabric"):  # what its constructor sets is there, too
        mine = mine(accelerator="cpu", devices=1, **({"logger": False} if name == "Trainer" else {}))
    members = {each for each in dir(theirs) if not each.startswith("_")} - known
    said = MEMBERS.get(name, {})
    here = {*dir(type(mine) if not isinstance(mine, type) else mine), *getattr(mine, "__dict__", ())}
    assert sorted(members - here - set(said)) == []
    assert sorted(set(said) & here) == [], "it is here by now"
    assert sorted(set(said) - members) == [], "Lightning has no such member"


@pytest.mark.parametrize("name", CLASSES)
def test_each_argument_is_here_or_said_why_not(name) -> None:
    theirs, mine = getattr(lightning, name), getattr(ours, name)
    lacking = []
    for member, function in inspect.getmembers(theirs, callable):
        if (member.startswith("_") and member != "__init__") or not hasattr(mine, member):
            continue
        try:
            wanted = inspect.signature(function).parameters.values()
            taken = inspect.signature(getattr(mine, member)).parameters
        except (TypeError, ValueError):
            continue
        if (
            any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
            and member != "__init__"
        ):
            continue
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for each in wanted:
            key = f"{name}.{member}({each.name})"
            # A hook is called by position: its own names are free.
            is_hook = member.startswith(("on_", "setup", "teardown")) and len(taken) >= len(wanted)
            if each.kind not in variable and each.name not in taken and key not in ARGUMENTS and not is_hook:
                lacking.append(key)
    assert lacking == []


def test_defaults_of_the_trainer_are_lightnings() -> None:
    theirs = inspect.signature(lightning.Trainer).parameters
    mine = inspect.signature(ours.Trainer).parameters
    different = {n for n, each in theirs.items() if n in mine and mine[n].default != each.default}
    assert different == set()
