"""Which launcher a run has that starts processes, and what is said where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem import Component, Launcher, LaunchPlan, RunConfig, Task
from stratagem.errors import ConflictError, UnknownNameError
from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.launchers.in_process import InProcessLauncher
from stratagem.plugin.origin import BrokenPlugin, Origin
from stratagem.resolve.launcher import installed_launcher, make_launcher
from stratagem.resolve.run import assemble


class Planned(Launcher):
    """Keeps the plan that it was made of."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan

    def launch(self, task: Task) -> Any:
        return task.function(*task.args)


def launcher(name: str, priority: int = 0) -> Component:
    target = f"{__name__}:Planned"
    return Component("launcher", name, target, "", priority=priority, origin=Origin(f"by-{name}", "1", name))


def test_the_highest_priority_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem.plugin.component.imported", lambda _: Planned)
    catalogue = Catalogue((launcher("far"), launcher("near", priority=1), launcher("other")))
    plan = LaunchPlan(3)
    assert installed_launcher(catalogue).name == "near"
    made = make_launcher(catalogue, plan)
    assert isinstance(made, Planned)
    assert made.plan is plan


def test_two_of_one_priority_are_an_error_that_names_both() -> None:
    with pytest.raises(ConflictError) as raised:
        installed_launcher(Catalogue((launcher("a"), launcher("b"))))
    assert str(raised.value).startswith(
        "launchers 'a' of by-a 1 and 'b' of by-b 1 both have the priority 0: leave one"
    )


def test_where_none_is_installed_it_says_what_to_install() -> None:
    with pytest.raises(UnknownNameError) as raised:
        installed_launcher(Catalogue(()))
    assert str(raised.value) == (
        "this run starts processes: launcher 'elastic' isn't installed: pip install stratagem-launch"
    )


def test_one_that_is_left_out_or_broken_is_named() -> None:
    with pytest.raises(UnknownNameError, match="is installed but left out: see --disable-plugin"):
        installed_launcher(load_catalogue(without=["launch"]))
    broken = BrokenPlugin(Origin("stratagem-launch", "1", "launch"), ImportError("no torch"))
    with pytest.raises(Exception, match="can't be loaded: ImportError: no torch; fix or uninstall it"):
        installed_launcher(Catalogue((), (broken,)))


def test_a_run_of_one_process_needs_none() -> None:
    run = assemble(RunConfig("single", accelerator="cpu", without_plugins=("launch",)), {})
    assert isinstance(run.launcher(), InProcessLauncher)
    run = assemble(RunConfig("ddp", accelerator="cpu", devices=2, without_plugins=("launch",)), {})
    with pytest.raises(UnknownNameError, match="this run starts processes"):
        run.launcher()
    assert assemble(RunConfig("ddp", accelerator="cpu", devices=2), {}).launcher().keeps_output
