"""Letting the launcher get ready as soon as it is likely that processes will be started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratagem import Component, LaunchPlan
from stratagem.errors import UsageError
from stratagem.sdk.selection import count_of
from stratagem_cli.chosen import catalogue, checkpoint_component, environment_here, strategy_component


def preload_where_likely(
    selection: Mapping[str, Any], options: Mapping[str, Any], modules: Sequence[str] = ()
) -> bool:
    """Let the launcher start its fork server if flags alone tell that this process will start several by it.

    Imports no torch, and refuses nothing: whether the run is possible is found out by assembling it.

    Args:
        selection: fields of `RunConfig` that were given.
        options: the strategy's own settings.
        modules: what workers need in addition to what every run needs.

    Returns:
        Whether it was started.
    """
    try:
        if not _several(selection.get("devices", "auto")) or environment_here(selection).creates_processes:
            return False
        strategy = strategy_component(selection)
    except UsageError:
        return False
    if strategy is not None and strategy.capabilities.processes != "per-device":
        return False
    preset = {} if strategy is None else strategy.options
    if {**preset, **options}.get("start_method", "forkserver") != "forkserver":
        return False
    from stratagem.sdk.runs import installed_launcher

    try:
        launcher = installed_launcher(catalogue(selection)).load()
    except UsageError:
        return False
    module = None if strategy is None else strategy.target.partition(":")[0]
    checkpoint = checkpoint_component(selection)
    launcher.preload((*preload_for(module, *([checkpoint] if checkpoint else ())), *modules))
    return True


def preload_for(strategy_module: str | None, *components: Component) -> tuple[str, ...]:
    """Modules that every worker needs, for the fork server to import once per node.

    Args:
        strategy_module: where an installed strategy's class is; None for a class of the user's own,
            whose module may do anything on import.
        components: what else workers are going to make, as the checkpointer.
    """
    own = (strategy_module,) if strategy_module is not None else ()
    return (*LaunchPlan.preload, *(module for each in components for module in each.modules()), *own)


def _several(devices: Any) -> bool:
    return (count_of(devices) or 0) > 1
