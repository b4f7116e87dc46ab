"""`SlurmPlace`: jobs of a Slurm cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from shutil import which
from typing import Any, Literal

from stratagem_places import Place, PlacedRun, PlaceRequest, PlaceStatus

from stratagem.errors import ConfigError
from stratagem_slurm.commands import said
from stratagem_slurm.script import job_script
from stratagem_slurm.states import job_status

_TIME = r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE"


@dataclass(frozen=True)
class SlurmPlace(Place):
    """A batch job with one task per node, which is Stratagem's launcher; options have the names of sbatch's."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """As Slurm writes it: minutes, 4:00:00 or 2-12:00:00."""
    gres: str | None = None
    """As gpu:a100:8, per node; where it isn't given and the accelerator is cuda, gpu:N for `--devices N`."""
    cpus_per_task: int | None = None
    """CPUs of a node, all of whose workers are one task's; as many as devices where it isn't given."""
    mem: str | None = None
    """Per node, as 64G."""
    constraint: str | None = None
    args: list[str] | None = None
    """Further options of sbatch, as [--exclusive, --reservation=x]."""
    setup: str | None = None
    """Lines of the shell that run before the command, as `module load cuda`."""
    python: str = sys.executable
    """The interpreter, on the nodes."""
    container: str | None = None
    """An image that the command runs in; none where it isn't given."""
    container_runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """What runs it: srun's plugin pyxis, or the program apptainer."""
    container_mounts: list[str] | None = None
    """Further folders that it sees, as /data or /data:/in; the run's folder and the code it always sees."""
    requeue: bool = True
    """Whether Slurm may put the job back into the queue: as the run does itself when its time ends."""
    signal: str | None = None
    """As USR1@120: what the run gets so many seconds before the job's end. Where it isn't given a fit gets USR1, 30 s
    before its grace period begins."""

    def __post_init__(self) -> None:
        if self.time is not None and not re.fullmatch(_TIME, self.time):
            raise ConfigError(
                f"time={self.time!r} is no time of Slurm's: write minutes, 4:00:00 or 2-12:00:00"
            )
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            raise ConfigError(f"cpus_per_task={self.cpus_per_task}: a node has at least 1 CPU")
        if self.signal is not None and not re.fullmatch(r"[A-Z0-9]+(@\d{1,5})?", self.signal):
            raise ConfigError(f"signal={self.signal!r} can't be understood: write it as USR1@120")
        for each in fields(self):
            value = getattr(self, each.name)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and each.name != "setup" and ("\n" in text or not text.strip()):
                    raise ConfigError(f"{each.name}={text!r} must be one line, and not empty")
        for arg in self.args or ():
            if not arg.startswith("-"):
                raise ConfigError(f"args has {arg!r}, which is no option of sbatch: write it as --exclusive")

    def why_not(self) -> str | None:
        if which("sbatch") is None:
            return "sbatch isn't installed here: submit from a machine of a Slurm cluster"
        return None

    def render(self, request: PlaceRequest) -> str:
        return job_script(self, request)

    def submit(self, request: PlaceRequest) -> Mapping[str, Any]:
        script = os.path.join(request.place_dir, "job.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(self.render(request))
        left = os.path.join(request.place_dir, "exit_code")
        if os.path.exists(left):
            os.unlink(left)
        return {"job_id": said("sbatch", "--parsable", script).strip().partition(";")[0]}

    def status(self, run: PlacedRun) -> PlaceStatus:
        return job_status(run, _job_id(run))

    def stop(self, run: PlacedRun) -> None:
        said("scancel", _job_id(run))


def _job_id(run: PlacedRun) -> str:
    """Return the job's number: an argument of Slurm's commands, which have options that run programs."""
    return run.job_text("job_id", r"\d{1,18}", "a job's number")
