"""Whether workers can import the script that launches them, and how a fresh interpreter does it."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import spawn
from typing import Any

from stratagem.errors import UsageError

_PREPARED = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name", "init_main_from_path")


def is_being_imported_by_worker() -> bool:
    """Tell whether this process is a worker that is just importing the launching script."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def preparation(task: bytes, start_method: str) -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs in a fresh interpreter.

    Args:
        task: the pickled task.
        start_method: popen, spawn or forkserver; the last two prepare themselves, so only checks are made.

    Raises:
        UsageError: the task uses what the script defines, and no worker can import the script.
    """
    data = {key: value for key, value in spawn.get_preparation_data("").items() if key in _PREPARED}
    path = data.get("init_main_from_path")
    name = data.get("init_main_from_name", "")
    missing = path is not None and not os.path.isfile(path)
    uses_main = b"__main__" in task
    if uses_main and (missing or (path is None and name.rpartition(".")[2] in ("", "__main__"))):
        raise UsageError(
            "workers can't import what is defined in an interactive session or in `python -c`: put it "
            f'in a file, or use start_method="fork" instead of {start_method!r}'
        )
    if missing and start_method != "popen":
        raise UsageError(
            f"the launching script {path!r} is no file that workers could import: put it in a file, "
            f'or use start_method="fork" instead of {start_method!r}'
        )
    if start_method != "popen":
        return {}
    if not uses_main:
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
    return data
