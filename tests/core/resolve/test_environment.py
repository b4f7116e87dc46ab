"""Choosing the environment: an object, a class, a name, or what the variables show."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.environments.base import RequestedSize
from stratagem.environments.detect import LAUNCHER_VARIABLES
from stratagem.environments.single import SingleProcess
from stratagem.errors import ConfigError, UnknownNameError, UsageError
from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.names.index import known_plugins
from stratagem.plugin.component import Capabilities
from stratagem.resolve.environment import choose_environment, requested_size
from stratagem.resolve.resolved import GIVEN

LAUNCHERS = known_plugins().launchers
SIZES = [
    (variable, LAUNCHERS[variable]) for variable, smallest in LAUNCHER_VARIABLES.items() if smallest == 2
]
RANKS = [
    (variable, LAUNCHERS[variable]) for variable, smallest in LAUNCHER_VARIABLES.items() if smallest == 1
]
PER_DEVICE, ONE = Capabilities(processes="per-device"), Capabilities(processes="one")


@pytest.mark.parametrize(
    ("devices", "nodes", "capabilities", "size"),
    [
        (4, 1, None, (4, 1)),
        (4, 2, PER_DEVICE, (4, 2)),
        (4, 2, ONE, (1, 2)),
        ("auto", 1, None, (None, 1)),
        ([0, 2], 1, None, (2, 1)),
        (2, "1:3", None, (2, None)),
        (2, "3:3", None, (2, 3)),
    ],
)
def test_how_many_processes_a_run_asks_for(devices: Any, nodes: Any, capabilities: Any, size: Any) -> None:
    assert requested_size(devices, nodes, capabilities) == RequestedSize(*size)


def test_what_is_given_is_taken() -> None:
    given = SingleProcess({})
    chosen = choose_environment(load_catalogue(), given, {})
    assert (chosen.value, chosen.name, chosen.origin) == (given, "single", GIVEN)
    chosen = choose_environment(load_catalogue(), SingleProcess, {})
    assert isinstance(chosen.value, SingleProcess)
    assert chosen.name == "single"
    for odd in (3, object(), int, None):
        with pytest.raises(ConfigError, match="isn't an environment: give a name, or a class derived from"):
            choose_environment(load_catalogue(), odd, {})


def test_by_name_or_by_variables() -> None:
    chosen = choose_environment(load_catalogue(), "single", {"SLURM_JOB_ID": "1"})
    assert (chosen.name, chosen.why, chosen.component) == ("single", "asked for", "single")
    detected = choose_environment(load_catalogue(), "auto", {})
    assert (detected.name, detected.component) == ("single", "single")
    assert "no launcher" in detected.why
    with pytest.raises(UnknownNameError, match="nearest: slurm"):
        choose_environment(load_catalogue(), "slrum", {})


@pytest.mark.parametrize(("variable", "name"), SIZES)
def test_processes_of_a_launcher_that_nothing_installed_reads_are_refused(variable: str, name: str) -> None:
    """Each of them would be a run of its own."""
    left_out = load_catalogue(without=["clusters", "horovod"])
    with pytest.raises(UnknownNameError, match=f"{variable}='2' says .*: environment '{name}' comes with"):
        choose_environment(left_out, "auto", {variable: "2"})
    core = Catalogue(tuple(each for each in left_out.components if each.kind == "environment"))
    installed_by = known_plugins().of_kind("environment")[name]
    with pytest.raises(UnknownNameError, match=f"'{name}' isn't installed: pip install {installed_by}; with"):
        choose_environment(core, "auto", {variable: "2"})
    for harmless in ({variable: "1"}, {variable: ""}, {variable: "x"}, {}):
        assert choose_environment(core, "auto", harmless).name == "single"
    assert choose_environment(core, "single", {variable: "2"}).name == "single"
    if name == "env":  # by itself left over, unless the run asks for another number of processes
        assert not choose_environment(load_catalogue(), "auto", {variable: "2"}).value.creates_processes
    else:
        with pytest.raises(UsageError, match=f"{variable}=2 says .* aren't set: start the processes with"):
            choose_environment(load_catalogue(), "auto", {variable: "2"})


@pytest.mark.parametrize(("variable", "name"), RANKS)
def test_a_rank_that_nothing_installed_reads_is_refused(variable: str, name: str) -> None:
    """It is one of several, and would be a run of its own."""
    core = Catalogue(
        tuple(each for each in load_catalogue(without=["clusters"]).components if each.kind == "environment")
    )
    with pytest.raises(
        UnknownNameError,
        match=f"{variable}='1' says .*'{name}' isn't installed: pip install stratagem-clusters",
    ):
        choose_environment(core, "auto", {variable: "1"})
    for harmless in ({variable: "0"}, {variable: ""}, {variable: "x"}):
        assert choose_environment(core, "auto", harmless).name == "single"
    assert choose_environment(core, "single", {variable: "1"}).name == "single"
