"""`Run`: what a configuration comes to on this machine, checked and sealed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from stratagem.config import RunConfig
from stratagem.errors import CombinationError, DeviceError
from stratagem.launchers.base import RUN_SECRET_VARIABLE, Launcher, LaunchPlan
from stratagem.launchers.rendezvous.nodes import (
    Nodes,
    parse_num_nodes,
    parse_rdzv_conf,
    refuse_unused_rendezvous,
)
from stratagem.plugin.catalogue import Catalogue, load_catalogue
from stratagem.plugin.component import Capabilities
from stratagem.plugin.hookspecs import PROTOCOLS
from stratagem.plugin.requests import LaunchRequest
from stratagem.plugin.sealing import Hooks
from stratagem.resolve import select
from stratagem.resolve.defaults import Defaults
from stratagem.resolve.devices import devices_of, given_devices, refuse_other_devices, torch_device_type
from stratagem.resolve.environment import choose_environment, requested_size
from stratagem.resolve.extensions import load_extension
from stratagem.resolve.pairing import refusal, refuse_accelerator, refuse_missing_features, strategies_for
from stratagem.resolve.select import Choice

if TYPE_CHECKING:
    import torch

    from stratagem.accelerators.base import Accelerator
    from stratagem.environments.base import Environment
    from stratagem.strategies.base import Strategy


@dataclass(frozen=True)
class Run:
    """One component per kind, the devices, and the sealed hooks. Made by `assemble`."""

    config: RunConfig
    strategy: Strategy
    capabilities: Capabilities
    """The strategy's."""
    accelerator: Accelerator
    precision: str
    create_precision: Any
    create_checkpointer: Any
    environment: Environment
    devices: tuple[int, ...]
    """Indices of this node's devices, one per process, or all of one process's."""
    plan: LaunchPlan
    hooks: Hooks
    choices: tuple[Choice, ...]
    catalogue: Catalogue

    def launcher(self) -> Launcher:
        """Ask the `launch` hook; in the launching process only."""
        return self.hooks.launch(LaunchRequest(self.plan, self.environment))

    def worker_config(self, launcher: Launcher) -> RunConfig:
        """The configuration from which a worker that `launcher` starts assembles the same run."""
        if launcher.worker_environment is None:
            return self.config
        strategy = self.config.strategy
        if getattr(strategy, "cluster_environment", None) is not None:
            strategy = copy(strategy)
            strategy.cluster_environment = (
                None  # of the launching process; workers find themselves in another
            )
        return replace(self.config, environment=launcher.worker_environment, strategy=strategy)

    @property
    def strategy_name(self) -> str:
        """As the strategy was chosen."""
        return next(choice.name for choice in self.choices if choice.kind == "strategy")

    @property
    def world_size(self) -> int:
        """Number of processes: those that the environment made, or else that the launcher makes, at most."""
        return self.environment.world_size if self.environment.creates_processes else self.plan.world_size

    def device(self) -> torch.device:
        """The device of this process."""
        given = getattr(self.strategy, "parallel_devices", None)
        index = self.environment.local_rank if self.capabilities.processes == "per-device" else 0
        device: torch.device = given[index] if given else self.accelerator.device(self.devices[index])
        return device

    def process_devices(self) -> tuple[torch.device, ...]:
        """All devices of this process, `device` first."""
        if self.capabilities.processes == "per-device":
            return (self.device(),)
        given = getattr(self.strategy, "parallel_devices", None)
        return tuple(given) if given else tuple(self.accelerator.device(index) for index in self.devices)

    def require(self, features: Sequence[str]) -> None:
        """Refuse what the strategy doesn't declare.

        Raises:
            CombinationError: names strategies that can.
        """
        refuse_missing_features(self.catalogue, self.strategy_name, self.capabilities, features)

    def refusal(self, feature: str, what: str) -> CombinationError:
        """Return the error for `what`, which only strategies with `feature` can do; it names those installed."""
        return refusal(self.catalogue, self.strategy_name, what, [feature])

    def versions(self) -> dict[str, str]:
        """Component → origin, for comparing ranks."""
        return {f"{c.kind} {c.name}": c.origin for c in self.choices if c.kind != "environment"}

    def digest(self) -> str:
        """Equal on ranks that run the same components in the same versions."""
        return sha256(repr(sorted(self.versions().items())).encode()).hexdigest()


def assemble(config: RunConfig, environ: Mapping[str, str] | None = None) -> Run:
    """Choose, check and seal.

    Nothing is started and no device is touched; nothing on disk changes.

    Raises:
        UsageError: something isn't available; one of its subclasses says what.
        SealError: the hooks don't fit together.
    """
    environ = os.environ if environ is None else environ
    catalogue = load_catalogue(config.only_plugins, config.without_plugins)
    given = config.strategy if not isinstance(config.strategy, str) else None
    known = catalogue.find("strategy", config.strategy) if _is_name(config.strategy) else None
    wanted_environment = getattr(given, "cluster_environment", None) or config.environment
    parallel = given_devices(given)
    size = requested_size(
        len(parallel) if parallel else config.devices,
        config.num_nodes,
        known.component.capabilities if known else None,
    )
    environment, environment_choice = choose_environment(catalogue, wanted_environment, environ, size)
    if known is not None:
        known.refuse_missing()
    accelerator = select.choose_accelerator(
        catalogue,
        getattr(given, "accelerator", None) or config.accelerator,
        known.component.capabilities if known else None,
        torch_device_type(parallel),
    )
    refuse_other_devices(parallel, accelerator.value)
    devices = _devices(config, accelerator.value, environment, given)
    nodes = parse_num_nodes(config.num_nodes)
    processes = environment.world_size if environment.creates_processes else len(devices) * nodes.max
    strategy = select.choose_strategy(
        catalogue, config.strategy, config.strategy_options, processes, accelerator
    )
    refuse_accelerator(catalogue, strategy, accelerator)
    _refuse_process_count(catalogue, strategy, environment, devices, config)
    refuse_missing_features(
        catalogue, strategy.choice.name, strategy.capabilities, _nodes_features(environment, nodes)
    )
    precision_name, create_precision, precision_choice = select.choose_precision(
        catalogue,
        getattr(strategy.value, "precision_plugin", None) or config.precision,
        accelerator.value,
        strategy.capabilities,
    )
    create_checkpointer, checkpoint_choice = select.choose_checkpointer(
        catalogue, strategy.value.checkpoint_io, config.checkpoint
    )
    extensions = [load_extension(catalogue, extension) for extension in config.extensions]
    hooks = Hooks(
        Defaults(),
        [(strategy.choice.name, strategy.value), *((choice.name, value) for value, choice in extensions)],
        PROTOCOLS,
    )
    start_method = getattr(strategy.value, "start_method", "forkserver")
    if start_method not in strategy.capabilities.start_methods:
        raise CombinationError(
            f"strategy {strategy.choice.name!r} can't be started with start_method={start_method!r}: "
            f"choose one of {', '.join(strategy.capabilities.start_methods)}"
        )
    plan = LaunchPlan(
        processes_per_node=_processes_per_node(strategy.capabilities, devices),
        num_nodes=nodes.max,
        min_nodes=nodes.min,
        node_rank=config.node_rank,
        rdzv_endpoint=config.rdzv_endpoint,
        rdzv_backend=config.rdzv_backend,
        rdzv_conf=parse_rdzv_conf(config.rdzv_conf),
        run_id=environ.get(RUN_SECRET_VARIABLE) or None,
        start_method=start_method,
        max_restarts=config.max_restarts,
        preload=preload_for(type(strategy.value).__module__ if isinstance(config.strategy, str) else None),
    )
    # Whoever names the environment has decided that other variables don't count.
    if wanted_environment == "auto":
        plan = environment.complete_plan(plan)
    if (
        wanted_environment == "auto" or not environment.creates_processes
    ):  # workers are told their environment
        refuse_unused_rendezvous(config, plan, environment.creates_processes)
    choices = (
        strategy.choice,
        accelerator.choice,
        precision_choice,
        environment_choice,
        checkpoint_choice,
        *(choice for _, choice in extensions),
    )
    run = Run(
        config=config,
        strategy=strategy.value,
        capabilities=strategy.capabilities,
        accelerator=accelerator.value,
        precision=precision_name,
        create_precision=create_precision,
        create_checkpointer=create_checkpointer,
        environment=environment,
        devices=devices,
        plan=plan,
        hooks=hooks,
        choices=choices,
        catalogue=catalogue,
    )
    strategy.value.check_run(run)
    return run


def preload_for(strategy_module: str | None) -> tuple[str, ...]:
    """Modules that every worker needs, for the fork server to import once per node.

    Args:
        strategy_module: where an installed strategy's class is; None for a class of the user's own,
            whose module may do anything on import.
    """
    own = (strategy_module,) if strategy_module is not None else ()
    checkpoint = [f"stratagem.checkpoint.{name}" for name in ("directory", "saving", "safetensors_storage")]
    return (*LaunchPlan.preload, *checkpoint, *own)


def _is_name(strategy: Any) -> bool:
    return isinstance(strategy, str) and strategy != "auto"


def _devices(
    config: RunConfig, accelerator: Accelerator, environment: Environment, given: Any
) -> tuple[int, ...]:
    parallel = getattr(given, "parallel_devices", None)
    if parallel:
        return tuple(range(len(parallel)))
    local = environment.local_world_size
    default = local if environment.creates_processes and local > 1 else None
    devices = devices_of(accelerator, config.devices, default)
    if not devices:
        raise DeviceError(
            f"devices={config.devices!r} asks for no device, and a run needs one: choose at least 1, or 'auto'"
        )
    return devices


def _nodes_features(environment: Environment, nodes: Nodes) -> list[str]:
    """What a strategy must be able to do for the run's machines."""
    if environment.creates_processes:
        return ["several_nodes"] if environment.world_size > environment.local_world_size else []
    return ["several_nodes"] * (nodes.max > 1) + ["elastic"] * nodes.is_elastic


def _processes_per_node(capabilities: Capabilities, devices: tuple[int, ...]) -> int:
    return len(devices) if capabilities.processes == "per-device" else 1


def _refuse_process_count(
    catalogue: Catalogue,
    strategy: select.Chosen,
    environment: Environment,
    devices: tuple[int, ...],
    config: RunConfig,
) -> None:
    name, capabilities = strategy.choice.name, strategy.capabilities
    splits = "several_devices" in capabilities.features
    several = ", ".join(strategies_for(catalogue, "per-device")) or "stratagem-ddp (not installed)"
    made = environment.world_size if environment.creates_processes else parse_num_nodes(config.num_nodes).max
    if capabilities.processes == "one" and made > 1:
        raise CombinationError(
            f"strategy {name!r} runs in one process, but there are {made}: choose one of {several}"
        )
    if capabilities.processes != "per-device" and len(devices) > 1 and not splits:
        raise CombinationError(
            f"strategy {name!r} uses one device per process, but devices={config.devices!r} asks for {len(devices)}: "
            f"choose one of {several}, or devices=1"
        )
    wanted = _processes_per_node(capabilities, devices)
    if environment.creates_processes and wanted != environment.local_world_size:
        raise DeviceError(
            f"{environment.name} started {environment.local_world_size} processes on this node, but "
            f"devices={config.devices!r} asks for {wanted}: give both the same number"
        )
