"""Starting the fork server as soon as it is likely that processes will be started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.selection import choose_environment, count_of


def preload_where_likely(
    selection: Mapping[str, Any], options: Mapping[str, Any], modules: Sequence[str] = ()
) -> bool:
    """Start the fork server if flags alone tell that this process will start several by it.

    Imports no torch, and refuses nothing: whether the run can be had is found out by assembling it.

    Args:
        selection: fields of `RunConfig` that were given.
        options: the strategy's own settings.
        modules: what workers need beside what every run does.

    Returns:
        Whether it was started.
    """
    try:
        if not _several(selection.get("devices", "auto")) or not _forks(selection, options):
            return False
    except UsageError:
        return False
    from stratagem.sdk.processes import preload_fork_server
    from stratagem.sdk.runs import preload_for

    preload_fork_server((*preload_for(_module_of(selection)), *modules))
    return True


def _module_of(selection: Mapping[str, Any]) -> str | None:
    name = selection.get("strategy", "auto")
    if name == "auto":
        return None
    catalogue = load_catalogue(selection.get("only_plugins", ()), selection.get("without_plugins", ()))
    return catalogue.find("strategy", name).component.target.partition(":")[0]


def _several(devices: Any) -> bool:
    return (count_of(devices) or 0) > 1


def _forks(selection: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    catalogue = load_catalogue(selection.get("only_plugins", ()), selection.get("without_plugins", ()))
    environment, _ = choose_environment(catalogue, selection.get("environment", "auto"), os.environ)
    if environment.creates_processes:
        return False
    name = selection.get("strategy", "auto")
    if name == "auto":
        return bool(options.get("start_method", "forkserver") == "forkserver")
    found = catalogue.find("strategy", name)
    start_method = {**found.options, **options}.get("start_method", "forkserver")
    return bool(found.component.capabilities.processes == "per-device" and start_method == "forkserver")
