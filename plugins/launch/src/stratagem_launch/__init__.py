"""Start, supervise and restart the processes of this node as a group.

For plugins that start processes: send tasks to them (`sending`, `loads`), lock folders that are removed after a kill
(`folder_lock`), keep states for the next attempt, start a fork server, and end processes with their parent.
Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_launch.elastic import ElasticLauncher
    from stratagem_launch.fork_server import preload_fork_server
    from stratagem_launch.guard import die_with
    from stratagem_launch.hangs.heartbeat import Heartbeat
    from stratagem_launch.leftovers import folder_lock
    from stratagem_launch.preemption import (
        STOP_SIGNALS,
        Preempted,
        PreemptionWatch,
        StopConditions,
        check_stop_signals,
    )
    from stratagem_launch.rendezvous.network import loopback_variables
    from stratagem_launch.restart_states import (
        LAUNCH_VARIABLE,
        can_save_restart_state,
        restart_state,
        save_restart_state,
    )
    from stratagem_launch.slurm_job import SlurmJob
    from stratagem_launch.stop_points import preemption_watch, stopping
    from stratagem_launch.transfer.pickling import loads, sending
    from stratagem_launch.transfer.shared import shared

__all__ = [
    "LAUNCH_VARIABLE",
    "STOP_SIGNALS",
    "ElasticLauncher",
    "Heartbeat",
    "Preempted",
    "PreemptionWatch",
    "SlurmJob",
    "StopConditions",
    "can_save_restart_state",
    "check_stop_signals",
    "die_with",
    "folder_lock",
    "loads",
    "loopback_variables",
    "preemption_watch",
    "preload_fork_server",
    "restart_state",
    "save_restart_state",
    "sending",
    "shared",
    "stopping",
]

if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".elastic": "ElasticLauncher",
            ".fork_server": "preload_fork_server",
            ".guard": "die_with",
            ".hangs.heartbeat": "Heartbeat",
            ".leftovers": "folder_lock",
            ".preemption": "STOP_SIGNALS Preempted PreemptionWatch StopConditions check_stop_signals",
            ".rendezvous.network": "loopback_variables",
            ".restart_states": "LAUNCH_VARIABLE can_save_restart_state restart_state save_restart_state",
            ".slurm_job": "SlurmJob",
            ".stop_points": "preemption_watch stopping",
            ".transfer.pickling": "loads sending",
            ".transfer.shared": "shared",
        },
    )
