"""`Node`: the actor of one node, which runs a launcher as a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence


class Node:
    """Runs one command; its methods are called by the driver, from several threads.

    Args:
        arguments: of this node's Python.
        variables: environment variables in addition to the node's own.
        code_dir: of the code, where this machine sees the run's folder; otherwise what Ray has brought is taken.
        subfolder: working directory, relative to it.
    """

    def __init__(
        self, arguments: Sequence[str], variables: Mapping[str, str], code_dir: str, subfolder: str
    ) -> None:
        self._command = [sys.executable, "-m", "stratagem_ray.attached", str(os.getpid()), *arguments]
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        self._folder = os.path.join(code_dir if os.path.isdir(code_dir) else os.getcwd(), subfolder)
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def run(self) -> Iterator[str | int]:
        """Yield "" once it has begun, what the command prints, line by line, and at last its exit code."""
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if self._is_stopped:
            self.stop()
        yield ""
        assert self._process.stdout is not None
        # Ray calls `send`, which `yield from` would ask the file for.
        yield from (line for line in self._process.stdout)
        code = self._process.wait()
        yield code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Tell the command to save and end."""
        self._is_stopped = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
