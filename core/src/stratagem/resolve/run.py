"""`Run`: the components of a configuration on this machine, checked, and the sealed hooks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from stratagem.config import RunConfig
from stratagem.errors import CombinationError
from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.launchers.base import RUN_SECRET_VARIABLE, Launcher, LaunchPlan
from stratagem.launchers.nodes import (
    Nodes,
    node_unit,
    parse_num_nodes,
    parse_rdzv_conf,
    refuse_unused_rendezvous,
)
from stratagem.plugin.component import Capabilities, Component, Kind
from stratagem.plugin.hookspecs import PROTOCOLS
from stratagem.plugin.requests import LaunchRequest
from stratagem.plugin.sealing import Hooks
from stratagem.resolve import select
from stratagem.resolve.axes import resolved_axes
from stratagem.resolve.defaults import Defaults
from stratagem.resolve.devices import given_devices, node_devices, refuse_other_devices, torch_device_type
from stratagem.resolve.environment import choose_environment, size_on
from stratagem.resolve.extensions import load_extension
from stratagem.resolve.launcher import make_launcher
from stratagem.resolve.pairing import (
    processes_per_node,
    refusal,
    refuse_accelerator,
    refuse_missing_features,
    refuse_process_count,
    refuse_start_method,
    refuse_unavailable_backend,
)
from stratagem.resolve.resolved import Resolved

if TYPE_CHECKING:
    import torch

    from stratagem.accelerators.base import Accelerator
    from stratagem.environments.base import Environment
    from stratagem.strategies.base import Strategy


@dataclass(frozen=True)
class Run:
    """One component per kind, the devices, and the sealed hooks. Made by `assemble`."""

    config: RunConfig
    catalogue: Catalogue
    resolved: tuple[Resolved, ...]
    """One for each kind of component, then the extensions, in the order of the printed plan."""
    devices: tuple[int, ...]
    """Indices of this node's devices: one per process, or all devices of a single process."""
    plan: LaunchPlan
    hooks: Hooks

    def of_kind(self, kind: Kind) -> Resolved:
        """Return the run's component of a kind; the first of several."""
        return next(each for each in self.resolved if each.kind == kind)

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return cast("Strategy", self.of_kind("strategy").value)

    @property
    def strategy_name(self) -> str:
        """The name by which the strategy was chosen."""
        return self.of_kind("strategy").name

    @property
    def capabilities(self) -> Capabilities:
        """The strategy's capabilities."""
        return self.of_kind("strategy").capabilities

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator of the devices."""
        return cast("Accelerator", self.of_kind("accelerator").value)

    @property
    def precision(self) -> str:
        """Name of the precision."""
        return self.of_kind("precision").name

    @property
    def environment(self) -> Environment:
        """The environment of this process."""
        return cast("Environment", self.of_kind("environment").value)

    def launcher(self) -> Launcher:
        """Return the launcher of the `launch` hook. Call it in the launching process only.

        Raises:
            CombinationError: `log_dir` is set, and the launcher doesn't keep the output of workers.
        """
        launcher = self.hooks.launch(
            LaunchRequest(self.plan, self.environment, partial(make_launcher, self.catalogue))
        )
        if self.plan.log_dir is not None and not launcher.keeps_output:
            raise CombinationError(
                f"log_dir={self.plan.log_dir!r} keeps the output of workers that a run starts, and "
                + (
                    "this run is in the calling process"
                    if launcher.in_process
                    else "these are started otherwise"
                )
                + ": leave it out, and redirect the program's output"
            )
        return launcher

    def worker_config(self, launcher: Launcher) -> RunConfig:
        """Return the configuration from which a worker of `launcher` assembles the same run."""
        if launcher.worker_environment is None:
            return self.config
        strategy = self.config.strategy
        if not isinstance(strategy, str) and strategy.cluster_environment is not None:
            strategy = copy(strategy)
            strategy.cluster_environment = None  # it is the launching process's, and workers have another
        return replace(self.config, environment=launcher.worker_environment, strategy=strategy)

    @property
    def world_size(self) -> int:
        """Number of processes: those that the environment has made, or else the most that the launcher makes."""
        return self.environment.world_size if self.environment.creates_processes else self.plan.world_size

    def process_devices(self) -> tuple[torch.device, ...]:
        """The devices of this process; several only for a strategy that has "several_devices"."""
        given = given_devices(self.strategy)
        devices = tuple(given) if given else tuple(self.accelerator.device(index) for index in self.devices)
        if self.capabilities.processes == "per-device":
            return (devices[self.environment.local_rank],)
        return devices

    def require(self, features: Sequence[str]) -> None:
        """Refuse features that the strategy doesn't declare.

        Raises:
            CombinationError: names strategies that can.
        """
        refuse_missing_features(self.catalogue, self.strategy_name, self.capabilities, features)

    def refusal(self, feature: str, what: str) -> CombinationError:
        """Return the error that the strategy can't do `what`. It names installed strategies with `feature`."""
        return refusal(self.catalogue, self.strategy_name, what, [feature])

    def versions(self) -> dict[str, str]:
        """Return component → origin, for comparing ranks."""
        return {
            f"{each.kind} {each.name}": each.origin for each in self.resolved if each.kind != "environment"
        }

    def digest(self) -> str:
        """Return a hash that is equal on ranks with the same components in the same versions."""
        return sha256(repr(sorted(self.versions().items())).encode()).hexdigest()


def assemble(config: RunConfig, environ: Mapping[str, str] | None = None) -> Run:
    """Choose the components of a run, check them, and seal the hooks.

    It starts nothing, allocates nothing on a device, and writes nothing to disk.

    Raises:
        UsageError: something isn't available, or components don't go together. Subclasses tell the cases apart.
        SealError: the hooks don't fit together.
    """
    environ = os.environ if environ is None else environ
    catalogue = load_catalogue(config.only_plugins, config.without_plugins)
    nodes = parse_num_nodes(config.num_nodes)
    given, named = _asked_strategy(catalogue, config.strategy)
    declared = named.capabilities if named else None
    parallel = given_devices(given) if given is not None else None

    # Settings of a strategy object override the run's.
    asked_environment = (given and given.cluster_environment) or config.environment
    size = size_on(nodes, len(parallel) if parallel else config.devices, declared)
    environment = choose_environment(catalogue, asked_environment, environ, size)
    if named:
        named.refuse_missing()
    asked_accelerator = (given and given.accelerator) or config.accelerator
    accelerator = select.choose_accelerator(
        catalogue, asked_accelerator, declared, torch_device_type(parallel)
    )
    refuse_other_devices(parallel, accelerator.value)
    devices = node_devices(config.devices, parallel, accelerator.value, environment.value)

    strategy = (
        select.make_strategy(named, str(config.strategy), config.strategy_options)
        if named
        else select.choose_strategy(
            catalogue,
            given or config.strategy,
            config.strategy_options,
            _processes(environment.value, nodes, devices),
            accelerator,
        )
    )
    refuse_accelerator(catalogue, strategy, accelerator)
    refuse_process_count(catalogue, strategy, environment.value, devices, nodes, config.devices)
    needed = _nodes_features(environment.value, nodes)
    refuse_missing_features(catalogue, strategy.name, strategy.capabilities, needed, strategy.value)
    refuse_start_method(strategy)
    refuse_unavailable_backend(strategy)
    precision = select.choose_precision(
        catalogue,
        strategy.value.precision_plugin or config.precision,
        accelerator.value,
        strategy.capabilities,
    )
    checkpoint = select.choose_checkpointer(
        catalogue, strategy.value.checkpoint_io, config.checkpoint, config.checkpoint_options
    )
    extensions = [load_extension(catalogue, extension) for extension in config.extensions]

    hooks = Hooks(Defaults(), [(each.name, each.value) for each in (strategy, *extensions)], PROTOCOLS)
    # A given object's class may be in the script itself, which workers can't import beforehand.
    preload = (*checkpoint.preload, *(() if given else strategy.preload))
    plan = environment.value.complete_plan(
        _launch_plan(config, nodes, devices, strategy, preload, environ.get(RUN_SECRET_VARIABLE) or None)
    )
    if asked_environment == "auto" or not environment.value.creates_processes:
        # Not in workers: their configuration names an environment that creates processes, and has the rendezvous of
        # the launching process.
        refuse_unused_rendezvous(config, plan, environment.value.creates_processes)
    axes = resolved_axes(catalogue, strategy.value.axes)
    resolved = (strategy, *axes, accelerator, precision, environment, checkpoint, *extensions)
    run = Run(config, catalogue, resolved, devices, plan, hooks)
    strategy.value.check_run(run)
    return run


def _asked_strategy(catalogue: Catalogue, asked: Any) -> tuple[Strategy | None, Component | None]:
    """Return the given strategy object, or the component with the given name; both None for "auto"."""
    if not isinstance(asked, str):
        return select.checked_strategy(catalogue, asked), None
    return None, None if asked == "auto" else catalogue.find("strategy", asked)


def _processes(environment: Environment, nodes: Nodes, devices: tuple[int, ...]) -> int:
    return environment.world_size if environment.creates_processes else len(devices) * nodes.max


def _launch_plan(
    config: RunConfig,
    nodes: Nodes,
    devices: tuple[int, ...],
    strategy: Resolved,
    preload: tuple[str, ...],
    run_id: str | None,
) -> LaunchPlan:
    processes = processes_per_node(strategy.capabilities, devices)
    return LaunchPlan(
        processes_per_node=processes,
        num_nodes=nodes.max,
        min_nodes=nodes.min,
        node_unit=node_unit(nodes, strategy.value.rank_unit, processes) if nodes.is_elastic else 1,
        node_rank=config.node_rank,
        rdzv_endpoint=config.rdzv_endpoint,
        rdzv_backend=config.rdzv_backend,
        rdzv_conf=parse_rdzv_conf(config.rdzv_conf),
        run_id=run_id,
        start_method=strategy.value.start_method,
        max_restarts=config.max_restarts,
        log_dir=config.log_dir,
        preload=(*LaunchPlan.preload, *preload),
    )


def _nodes_features(environment: Environment, nodes: Nodes) -> list[str]:
    """Return the features that a strategy needs for the run's number of machines."""
    if environment.creates_processes:
        return ["several_nodes"] if environment.world_size > environment.local_world_size else []
    return ["several_nodes"] * (nodes.max > 1) + ["elastic"] * nodes.is_elastic
