"""Chooses the environment of a run: an object, a class, a name, or the one that environment variables show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratagem.accelerators.indices import count_of
from stratagem.environments.base import Environment, RequestedSize
from stratagem.environments.detect import LAUNCHER_VARIABLES, detect_environment
from stratagem.environments.single import SingleProcess
from stratagem.errors import ConfigError, ConflictError, UnknownNameError, UsageError, short
from stratagem.installed.catalogue import Catalogue
from stratagem.launchers.nodes import Nodes, parse_num_nodes
from stratagem.names.index import known_plugins
from stratagem.plugin.component import Capabilities, Component
from stratagem.resolve.resolved import Resolved, resolved_from


def requested_size(devices: Any, num_nodes: Any, capabilities: Capabilities | None = None) -> RequestedSize:
    """Return how many processes a run asks for, as far as that is known before its components are chosen.

    Args:
        devices: as in `RunConfig`.
        num_nodes: as in `RunConfig`.
        capabilities: the strategy's, if it was chosen by name.
    """
    return size_on(parse_num_nodes(num_nodes), devices, capabilities)


def size_on(nodes: Nodes, devices: Any, capabilities: Capabilities | None) -> RequestedSize:
    """Return the same as `requested_size`, for a number of machines that is parsed already."""
    is_per_device = capabilities is None or capabilities.processes == "per-device"
    return RequestedSize(count_of(devices) if is_per_device else 1, None if nodes.is_elastic else nodes.max)


def choose_environment(
    catalogue: Catalogue, wanted: Any, environ: Mapping[str, str], size: RequestedSize | None = None
) -> Resolved:
    """Make the environment that is asked for, or the first that recognises its launcher's variables.

    Args:
        catalogue: what is installed.
        wanted: a name, "auto", a class, or an object that was made already.
        environ: the process's environment variables.
        size: the size that the run asks for. It completes the variables of processes that were started by hand.

    Raises:
        ConfigError: `wanted` is not an environment.
        ConflictError: two environments with the same priority recognise the variables.
        UnknownNameError: a launcher has started several processes, and no installed environment reads its variables.
    """
    size = size or RequestedSize()
    if isinstance(wanted, type) and issubclass(wanted, Environment):
        name = getattr(wanted, "name", wanted.__name__)
        return Resolved("environment", name, wanted(environ))
    if isinstance(wanted, Environment):
        return Resolved("environment", getattr(wanted, "name", type(wanted).__name__), wanted)
    if not isinstance(wanted, str):
        raise ConfigError(
            f"cluster_environment={short(wanted)} isn't an environment: give a name, or a class derived from "
            "stratagem.Environment or an object of one"
        )
    if wanted != "auto":
        component = catalogue.find("environment", wanted)
        return resolved_from(component, component.load().for_run(environ, size), why="asked for")
    components = {component.load(): component for component in catalogue.of_kind("environment")}
    cls, why = detect_environment(components, environ)
    if not cls.creates_processes:
        _refuse_unread_launcher(catalogue, environ)
        if cls is SingleProcess:
            _refuse_incomplete_launcher(components, environ)
    _refuse_rivals(cls, components, environ)
    return resolved_from(components[cls], cls.for_run(environ, size), why=why)


def _refuse_unread_launcher(catalogue: Catalogue, environ: Mapping[str, str]) -> None:
    """Refuse variables of a launcher that no environment reads: each process would train a separate model."""
    read = {variable for each in catalogue.of_kind("environment") for variable in each.launcher_variables}
    for variable, smallest in LAUNCHER_VARIABLES.items():
        value = environ.get(variable, "")
        if variable not in read and value.isdecimal() and int(value) >= smallest:
            hint = _missing_environment(catalogue, known_plugins().launchers.get(variable, ""))
            if hint is not None:
                raise UnknownNameError(
                    f"{variable}={short(value)} says that a launcher has started several processes: {hint}; with "
                    "--environment single each of them is a separate run"
                )


def _missing_environment(catalogue: Catalogue, name: str) -> str | None:
    """Say how to get the environment that reads a variable; None if another plugin has one with its name."""
    if not name:
        return "no installed environment reads it, so install the plugin for this launcher"
    try:
        catalogue.find("environment", name)
    except UsageError as error:
        return str(error)
    return None


def _refuse_incomplete_launcher(classes: Iterable[type[Environment]], environ: Mapping[str, str]) -> None:
    """Refuse a launcher's variables that are incomplete: each process would be a separate run.

    Raises:
        UsageError: names what is there, and what is missing.
    """
    for cls in classes:
        found = cls.detect_incomplete(environ)
        if found is not None:
            raise UsageError(
                f"{found}: start the processes with the launcher, which sets all of them, or for a run of this "
                "process alone unset them or choose --environment single"
            )


def _refuse_rivals(
    cls: type[Environment], components: Mapping[type[Environment], Component], environ: Mapping[str, str]
) -> None:
    """Refuse two environments with the same priority that both recognise the variables."""
    mine = components[cls]
    for other, component in components.items():
        if other is not cls and component.priority == mine.priority and other.detect(environ) is not None:
            names = [f"{each.name!r} of {each.origin}" for each in (mine, component)]
            raise ConflictError(
                f"environments {' and '.join(names)} both recognise the variables here, and both have the priority "
                f"{mine.priority}: name one with --environment, or uninstall the other"
            )
