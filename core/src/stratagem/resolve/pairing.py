"""Matches strategies with accelerators and settings, before any launch."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from stratagem.errors import CombinationError, ConfigError, DeviceError, UnknownNameError
from stratagem.installed.catalogue import Catalogue
from stratagem.plugin.component import FEATURES, Capabilities, Component

if TYPE_CHECKING:
    from stratagem.config import Devices
    from stratagem.environments.base import Environment
    from stratagem.launchers.nodes import Nodes
    from stratagem.resolve.resolved import Resolved
    from stratagem.strategies.base import Strategy


def automatic_strategy(catalogue: Catalogue, processes: int, accelerator: Resolved | None) -> Component:
    """Return the strategy for "auto": the first one for this number of devices.

    For several devices, strategies with a process per device come before those with all devices in one process. For
    one device, strategies with a single process come before those with a process per device.

    Args:
        catalogue: what is installed. Strategies whose library is missing aren't considered.
        processes: number of devices of the run.
        accelerator: the devices' accelerator, if it is known.

    Raises:
        UnknownNameError: there is none.
    """
    able = [component for component in catalogue.of_kind("strategy") if not component.missing()]
    if accelerator is not None:
        able = [component for component in able if _go_together(component, accelerator)]
    kind = "per-device" if processes > 1 else "one"
    fitting = [component for component in able if component.capabilities.processes == kind]
    if processes > 1:
        fitting += [component for component in able if "several_devices" in component.capabilities.features]
    else:
        # A strategy with a process per device has a single process on one device.
        fitting += [component for component in able if component.capabilities.processes == "per-device"]
    if not fitting:
        raise UnknownNameError(
            f"no installed strategy trains on {processes} devices: pip install stratagem, or choose devices=1"
            if processes > 1
            else "no installed strategy trains on one device: pip install stratagem"
        )
    return fitting[0]


def _go_together(strategy: Component, accelerator: Resolved) -> bool:
    return allows(strategy.capabilities.accelerators, accelerator.name) and allows(
        accelerator.capabilities.strategies, strategy.name
    )


def refuse_missing_features(
    catalogue: Catalogue,
    name: str,
    capabilities: Capabilities,
    needed: Sequence[str],
    strategy: Strategy | None = None,
) -> None:
    """Refuse features that the strategy doesn't declare. The error names a setting or strategies that have them.

    Args:
        catalogue: of the run.
        name: the strategy's.
        capabilities: the strategy's.
        needed: names of features.
        strategy: knows which of its settings enables a feature; None names only other strategies.

    Raises:
        CombinationError: a needed feature is missing.
    """
    missing = [feature for feature in needed if feature not in capabilities.features]
    if not missing:
        return
    advice = None if strategy is None else strategy.advice_for(missing[0])
    if advice is not None:
        raise CombinationError(f"strategy {name!r} can't do this: {FEATURES[missing[0]]}; {advice}")
    raise refusal(catalogue, name, FEATURES[missing[0]], needed)


def refusal(catalogue: Catalogue, name: str, what: str, needed: Sequence[str]) -> CombinationError:
    """Return the error that strategy `name` can't do `what`; it names strategies that have the features `needed`."""
    able = [each.name for each in _choices(catalogue) if set(needed) <= each.capabilities.features]
    return CombinationError(f"strategy {name!r} can't do this: {what}; {_instead(able)}")


def refuse_accelerator(catalogue: Catalogue, strategy: Resolved, accelerator: Resolved) -> None:
    """Refuse a strategy and an accelerator that don't go together.

    Raises:
        CombinationError: names strategies that do.
    """
    its_own = accelerator.capabilities.strategies
    if strategy.component and not allows(its_own, strategy.component):
        why = f"accelerator {accelerator.name!r} works with {', '.join(its_own)}, not with {strategy.name}"
    elif not allows(strategy.capabilities.accelerators, accelerator.name):
        works_on = ", ".join(strategy.capabilities.accelerators)
        why = f"strategy {strategy.name!r} works on {works_on}, not on {accelerator.name}"
    else:
        return
    able = [each.name for each in _choices(catalogue) if _go_together(each, accelerator)]
    raise CombinationError(f"{why}; {_instead(able)}")


def processes_per_node(capabilities: Capabilities, devices: tuple[int, ...]) -> int:
    """Return how many processes a strategy has on a node with `devices`."""
    return len(devices) if capabilities.processes == "per-device" else 1


def refuse_process_count(
    catalogue: Catalogue,
    strategy: Resolved,
    environment: Environment,
    devices: tuple[int, ...],
    nodes: Nodes,
    asked: Devices | str,
) -> None:
    """Refuse numbers of processes and devices that the strategy doesn't support.

    Args:
        catalogue: what is installed.
        strategy: the run's.
        environment: the run's.
        devices: this node's.
        nodes: how many machines.
        asked: the user's value of `devices`, for the message.

    Raises:
        CombinationError: names strategies that can.
        DeviceError: a launcher started another number of processes.
    """
    name, capabilities = strategy.name, strategy.capabilities
    splits = "several_devices" in capabilities.features

    def others() -> str:
        able = strategies_for(catalogue, "per-device")
        return ", ".join(able) or "those that `pip install stratagem` brings"

    made = environment.world_size if environment.creates_processes else nodes.max
    if capabilities.processes == "one" and made > 1:
        raise CombinationError(
            f"strategy {name!r} runs in one process, but there are {made}: choose one of {others()}"
        )
    if capabilities.processes != "per-device" and len(devices) > 1 and not splits:
        raise CombinationError(
            f"strategy {name!r} uses one device per process, but devices={asked!r} asks for {len(devices)}: "
            f"choose one of {others()}, or devices=1"
        )
    wanted = processes_per_node(capabilities, devices)
    if environment.creates_processes and wanted != environment.local_world_size:
        if capabilities.processes != "per-device":
            raise CombinationError(
                f"strategy {name!r} drives all devices of a node from one process, but {environment.name} started "
                f"{environment.local_world_size} on this node: start one per node, or choose one of {others()}"
            )
        raise DeviceError(
            f"{environment.name} started {environment.local_world_size} processes on this node, but "
            f"devices={asked!r} asks for {wanted}: give both the same number"
        )


def refuse_start_method(strategy: Resolved) -> None:
    """Refuse a way to start processes that the strategy doesn't declare.

    Raises:
        CombinationError: names the start methods that it declares.
    """
    start_method, able = strategy.value.start_method, strategy.capabilities.start_methods
    if start_method not in able:
        raise CombinationError(
            f"strategy {strategy.name!r} can't be started with start_method={start_method!r}: choose one of "
            f"{', '.join(able)}"
        )


def refuse_unavailable_backend(strategy: Resolved) -> None:
    """Refuse a backend of process groups that this build of torch lacks.

    An unknown name is accepted unless it resembles a known one: workers may import a module that registers it.

    Raises:
        ConfigError: names the available backends.
    """
    given = getattr(strategy.value, "process_group_backend", None)
    if not isinstance(given, str):
        return
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    there = [name for name in known if dist.is_backend_available(name)]
    for part in given.split(","):  # as "cpu:gloo,cuda:nccl"
        name = part.rpartition(":")[2].strip().lower()
        if name in there or not (name in known or get_close_matches(name, known, cutoff=0.7)):
            continue
        raise ConfigError(
            f"process_group_backend={given!r} names {name!r}, which this build of torch doesn't have; available: "
            f"{', '.join(there) or 'none'}"
        )


def strategies_for(catalogue: Catalogue, processes: str) -> list[str]:
    """Return the names of installed strategies with this `Capabilities.processes`, in the catalogue's order."""
    return [each.name for each in _choices(catalogue) if each.capabilities.processes == processes]


def _choices(catalogue: Catalogue) -> list[Component]:
    """Return the strategies that can be chosen by name. The one that composes axes needs an expression of axes."""
    return [each for each in catalogue.of_kind("strategy") if not each.composes_axes]


def _instead(names: Sequence[str]) -> str:
    return f"installed strategies that can: {', '.join(names)}" if names else "no installed strategy can"


def allows(allowed: Sequence[str], name: str) -> bool:
    """Whether a declared list of names has `name`. "*" matches any name, and "float8*" any name with this prefix."""
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allowed)
