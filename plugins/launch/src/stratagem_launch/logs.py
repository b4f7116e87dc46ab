"""Write each rank's output to log files, and still show it on the console."""

from __future__ import annotations

import os

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from stratagem.errors import ConfigError, short
from stratagem_launch.launch_dir import log_file


class InheritedOutput(LogsSpecs):
    """Workers write to the launching process's console; nothing is kept."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no destinations for the local ranks in `envs`."""
        console = dict.fromkeys(envs, "")
        return LogsDest(stdouts=dict(console), stderrs=dict(console), error_files=dict(console))


class KeptOutput(LogsSpecs):
    """Each rank's output goes to `attempt_N/RANK/{stdout,stderr}.log`, and from there to the console.

    Workers redirect their own output, because an agent that starts a program would leave the files open.

    Args:
        log_dir: created if it doesn't exist. Several nodes may share it.
    """

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir=log_dir)
        self._log_dir = log_dir

    @property
    def root_log_dir(self) -> str:
        return self._log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make empty files for the local ranks in `envs`, to be followed from now on."""
        console = dict.fromkeys(envs, "")
        followed: dict[str, dict[int, str]] = {"stdout": {}, "stderr": {}}
        for local_rank, env in envs.items():
            attempt, rank = int(env["TORCHELASTIC_RESTART_COUNT"]), int(env["RANK"])
            for stream, files in followed.items():
                files[local_rank] = log_file(self._log_dir, attempt, rank, stream)
                os.makedirs(os.path.dirname(files[local_rank]), exist_ok=True)
                open(files[local_rank], "w").close()  # drops what an earlier run left
        return LogsDest(
            stdouts=dict(console),
            stderrs=dict(console),
            tee_stdouts=followed["stdout"],
            tee_stderrs=followed["stderr"],
            error_files=dict(console),
        )


def refuse_unwritable(log_dir: str) -> None:
    """Make the folder for workers' output.

    Raises:
        ConfigError: it can't be made, or written to.
    """
    try:
        os.makedirs(log_dir, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"log_dir={short(log_dir)} can't be created ({reason}): name another folder"
        ) from None
    if not os.access(log_dir, os.W_OK):
        raise ConfigError(f"log_dir={short(log_dir)} isn't writable: name another folder")
