"""`LocalPlace`: this machine, in the background."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from stratagem.errors import UsageError
from stratagem_places.place import Place, PlaceStatus, state_of
from stratagem_places.processes import is_process, parent_of, started_at
from stratagem_places.request import PlaceRequest
from stratagem_places.run_record import PlacedRun


class LocalPlace(Place):
    """A process that continues without the terminal. One node; has no options."""

    ask_every_s = 0.5

    def why_not(self) -> str | None:
        return None if os.name == "posix" else "it needs a shell of POSIX"

    def render(self, request: PlaceRequest) -> str:
        """The script of the shell."""
        if request.max_nodes > 1:
            raise UsageError(
                f"--on local has one node, this machine, and --num-nodes asks for {request.max_nodes}: leave it "
                "out, or name another place"
            )
        output = os.path.join(request.output_dir, "node-0.txt")
        lines = [
            "#!/bin/sh",
            f"cd {shlex.quote(request.working_dir)} || exit 2",
            *(f"export {name}={shlex.quote(value)}" for name, value in request.variables.items()),
            f"{shlex.join(request.node_command())} > {shlex.quote(output)} 2>&1 < /dev/null &",
            'echo $! > "$0.pid"',
            "wait $!",
            'echo $? > "$0.exit_code"',
            "",
        ]
        return "\n".join(lines)

    def submit(self, request: PlaceRequest) -> Mapping[str, Any]:
        script = os.path.join(request.place_dir, "run.sh")
        for left in (f"{script}.pid", f"{script}.exit_code"):
            if os.path.exists(left):
                os.unlink(left)
        with open(script, "w", encoding="utf-8") as file:
            file.write(self.render(request))
        # The first shell ends at once: what it has started is no child of this process.
        start = 'sh "$0" > /dev/null 2>&1 < /dev/null & echo $!'
        started = subprocess.run(
            ["sh", "-c", start, script], stdout=subprocess.PIPE, text=True, start_new_session=True, check=True
        )
        process = int(started.stdout)
        return {"process": process, "started": started_at(process) or ""}

    def status(self, run: PlacedRun) -> PlaceStatus:
        process, started = run.job_number("process", min=2), run.job_text("started", r"[^\n]*", "a text")
        code = _number(run, "exit_code")
        if code is not None:
            return PlaceStatus(state_of(code), f"exit code {code}" if code else "", code)
        if is_process(process, started):
            return PlaceStatus("running", f"process {process}")
        return PlaceStatus("unknown", "its process is gone, as after a restart of the machine")

    def stop(self, run: PlacedRun) -> None:
        pid = _number(run, "pid")
        # The shell is known by its start; what it has started is known by its parent.
        if (
            pid is not None
            and pid > 1
            and self.status(run).state == "running"
            and parent_of(pid) == run.job["process"]
        ):
            os.kill(pid, signal.SIGTERM)


def _number(run: PlacedRun, name: str) -> int | None:
    try:
        with open(os.path.join(run.run_dir, "place", f"run.sh.{name}"), encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
