"""The job's script, for sbatch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratagem_places import PlaceRequest

from stratagem.errors import ConfigError, short
from stratagem.sdk.environments import DERIVED_PORTS

if TYPE_CHECKING:
    from stratagem_slurm.place import SlurmPlace

_LONGER_S = 30
"""How much earlier than its grace period a fit gets the signal that its job ends. Slurm may be another 60 s early."""
_MEETING = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p' | head -n 1)
export MASTER_PORT=$(({first} + SLURM_JOB_ID * 16 % {count}))"""
"""Where the nodes meet. Slurm's name of a node need not be one that the others can look up: NodeAddr is."""
_GO_ON = """\
turn=$((SLURM_ARRAY_TASK_ID + ${{SLURM_RESTART_COUNT:-0}}))
if [ $turn -gt 0 ] && [ -d {checkpoints} ]; then set -- --ckpt-path auto; fi"""
"""A job of the array that was put back comes after the others, whose run it continues with."""
_NO_MORE = """\
if [ $code -eq 0 ] || [ $code -eq 2 ]; then scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"; fi"""


def job_script(place: SlurmPlace, request: PlaceRequest) -> str:
    """Return the script for sbatch, whole."""
    return "\n".join(["#!/bin/bash", *_directives(place, request), "", *_body(place, request), ""])


def _directives(place: SlurmPlace, request: PlaceRequest) -> Iterator[str]:
    is_array = request.max_restarts > 0
    nodes = f"{request.min_nodes}-{request.max_nodes}" if request.is_elastic else request.max_nodes
    gres = place.gres
    if gres is None and request.accelerator in ("cuda", "gpu") and request.devices:
        gres = f"gpu:{request.devices}"
    output = os.path.join(request.output_dir.replace("%", "%%"), "%A_%a.txt" if is_array else "%j.txt")
    signal = place.signal
    if signal is None and request.stage == "fit":
        signal = f"USR1@{round(request.grace_period_s) + _LONGER_S}"
    wanted = {
        "job-name": request.name,
        "partition": place.partition,
        "account": place.account,
        "qos": place.qos,
        "nodes": nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": place.cpus_per_task or request.devices,
        "mem": place.mem,
        "gres": gres,
        "constraint": place.constraint,
        "time": place.time,
        "signal": signal,
        # One after the other: a job that ended otherwise than done or refused makes room for the next.
        "array": f"0-{request.max_restarts}%1" if is_array else None,
        "chdir": request.working_dir,
        "output": output,
        "open-mode": "append",
    }
    for name, value in wanted.items():
        if value is not None:
            yield f"#SBATCH --{name}={shlex.quote(_one_line(name, str(value)))}"
    yield f"#SBATCH --{'requeue' if place.requeue else 'no-requeue'}"
    if request.is_elastic:
        yield "#SBATCH --no-kill"
    yield from (f"#SBATCH {shlex.quote(_one_line('args', arg))}" for arg in place.args or ())


def _one_line(name: str, text: str) -> str:
    """Return a value of a comment of the shell, which ends with its line: what follows would be a command.

    Raises:
        ConfigError: it has a line break or another control character.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ConfigError(f"{name}={short(text)} must be one line, without control characters")
    return text


def _body(place: SlurmPlace, request: PlaceRequest) -> Iterator[str]:
    exit_code = shlex.quote(os.path.join(request.place_dir, "exit_code"))
    several, is_array = request.max_nodes > 1, request.max_restarts > 0
    yield f"rm -f {exit_code}"
    yield from (f"export {name}={shlex.quote(value)}" for name, value in request.variables.items())
    if place.setup:
        yield place.setup.rstrip("\n")
    if several:
        yield _MEETING.format(first=DERIVED_PORTS.start, count=len(DERIVED_PORTS))
    if is_array and request.stage == "fit":
        yield _GO_ON.format(checkpoints=shlex.quote(os.path.join(request.run_dir, "checkpoints")))
    # One task has the whole node: without the number, srun gives it one CPU; and workers share what it has.
    srun = ['srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none']
    srun.append('${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}')
    # A node's end isn't the others': they have the time of a save, or continue without it.
    wait_s = 0 if request.is_elastic else round(request.grace_period_s) + _LONGER_S
    srun.append(f"--kill-on-bad-exit=0 --wait={wait_s}{' --no-kill' if request.is_elastic else ''}")
    if place.container and place.container_runtime == "pyxis":
        srun.append(f"--container-image={shlex.quote(place.container)}")
        srun.append(f"--container-mounts={shlex.quote(','.join(_mounts(place, request)))}")
        srun.append(f"--container-workdir={shlex.quote(request.working_dir)}")
    rank = " NODE_RANK=$SLURM_PROCID" if several else ""
    srun.append(f"""bash -c 'exec env -u SLURM_STEP_ID{rank} "$@"' node""")
    if place.container and place.container_runtime == "apptainer":
        binds = ",".join(_mounts(place, request))
        pwd = shlex.quote(request.working_dir)
        srun.append(
            f"apptainer exec --nv --bind {shlex.quote(binds)} --pwd {pwd} {shlex.quote(place.container)}"
        )
    yield f"{' '.join(srun)} \\"
    yield f'  {shlex.join(request.node_command(place.python))} "$@"'
    yield "code=$?"
    yield f"echo $code > {exit_code}"
    if is_array:
        yield _NO_MORE
    yield "exit $code"


def _mounts(place: SlurmPlace, request: PlaceRequest) -> Iterator[str]:
    yield f"{request.run_dir}:{request.run_dir}"
    yield from (mount if ":" in mount else f"{mount}:{mount}" for mount in place.container_mounts or ())
