"""The rendezvous of a run's launchers, and the agent's other settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stratagem import LaunchPlan
from stratagem.sdk.processes import LOOPBACK
from stratagem_launch.rendezvous.network import address_towards, require_host
from stratagem_launch.supervision import GRACE_S

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

_MONITOR_S = 0.05
LAST_CALL_S = 10
"""How long the rendezvous waits for more nodes once the minimum number has joined."""
HOST_WAIT_S = 30.0
"""How long the endpoint's host name may take to resolve, unless `rdzv_conf` has a timeout for joining."""


def require_endpoint(plan: LaunchPlan) -> None:
    """Wait until the host name of the plan's endpoint resolves. torch would take minutes to report that it doesn't.

    Waits for the `join_timeout` of `rdzv_conf` (some backends call it `timeout`), by default for `HOST_WAIT_S`.

    Raises:
        ConfigError: the name doesn't resolve in that time.
    """
    is_file = plan.rdzv_conf.get("store_type", "tcp").strip().lower() != "tcp"
    if not plan.rdzv_endpoint or is_file:
        return
    asked = plan.rdzv_conf.get("join_timeout") or plan.rdzv_conf.get("timeout") or ""
    require_host(plan.rdzv_endpoint, float(asked) if asked.isdecimal() else HOST_WAIT_S)


def launch_config(plan: LaunchPlan, run_id: str, launch_dir: str) -> LaunchConfig:
    """Convert a plan into the elastic agent's `LaunchConfig`.

    Args:
        plan: a plan for several nodes must have an endpoint.
        run_id: the same on all nodes of the run.
        launch_dir: path of the launch's `LaunchDir`.
    """
    from torch.distributed.launcher.api import LaunchConfig

    from stratagem_launch.logs import InheritedOutput, KeptOutput

    alone = plan.is_single_node
    endpoint = plan.rdzv_endpoint or ""
    backend = plan.rdzv_backend
    if alone:
        from stratagem_launch.rendezvous.single_node import register_single_node

        backend = register_single_node()
    configs: dict[str, Any] = {}
    if plan.node_rank is not None and not alone:
        configs["is_host"] = plan.node_rank == 0
        configs["rank"] = plan.node_rank  # only the backend `static` reads it
    if plan.is_elastic:
        configs["last_call_timeout"] = LAST_CALL_S
    configs.update(plan.rdzv_conf)
    settings: dict[str, Any] = {
        "min_nodes": plan.min_nodes or plan.num_nodes,
        "max_nodes": plan.num_nodes,
        "nproc_per_node": plan.processes_per_node,
        "logs_specs": KeptOutput(plan.log_dir) if plan.log_dir else InheritedOutput(),
        "run_id": run_id,
        "role": "stratagem",
        "rdzv_endpoint": endpoint,
        "rdzv_backend": backend,
        "rdzv_configs": configs,
        "max_restarts": plan.max_restarts,
        "monitor_interval": _MONITOR_S,
        "start_method": "spawn" if plan.start_method == "popen" else plan.start_method,
        "log_line_prefix_template": "[rank ${rank}] ",
        "local_addr": LOOPBACK if alone else address_towards(endpoint),
        # Ctrl-C stays Python's KeyboardInterrupt; `stop_signals` handles the others.
        "signals_to_handle": "",
        "shutdown_timeout": int(GRACE_S),
    }
    if not alone and plan.rdzv_backend != "static":
        from stratagem_launch.rendezvous.generations import with_generations

        settings = with_generations(settings, launch_dir, plan.node_unit)
    known = _known_settings()  # torch 2.9 doesn't have the last two
    return LaunchConfig(**{name: value for name, value in settings.items() if name in known})


def agent_ends_workers_in_time() -> bool:
    """Return whether this torch's agent has a setting for the time that workers may take to obey a signal."""
    return "shutdown_timeout" in _known_settings()


def _known_settings() -> set[str]:
    from torch.distributed.launcher.api import LaunchConfig

    return {entry.name for entry in dataclasses.fields(LaunchConfig)}
