"""Check whether workers can import the launching script, and prepare a fresh interpreter to import it."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import spawn
from typing import Any

from stratagem.errors import UsageError

_PREPARED = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name", "init_main_from_path")


def is_being_imported_by_worker() -> bool:
    """Return whether this process is a worker that is just importing the launching script."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def main_is_importable() -> bool:
    """Return whether workers can import what the launching script defines; not so in an interactive session."""
    data = spawn.get_preparation_data("")
    path = data.get("init_main_from_path")
    if path is not None:
        return os.path.isfile(path)
    return data.get("init_main_from_name", "").rpartition(".")[2] not in ("", "__main__")


def preparation(task: bytes, start_method: str) -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs in a fresh interpreter.

    Args:
        task: the pickled task.
        start_method: popen, spawn or forkserver; the last two prepare themselves, so only checks are made.

    Raises:
        UsageError: multiprocessing would import a script that isn't a file.
    """
    data = {key: value for key, value in spawn.get_preparation_data("").items() if key in _PREPARED}
    if start_method != "popen":
        path = data.get("init_main_from_path")
        if path is not None and not os.path.isfile(path):
            raise UsageError(
                f"the launching script {path!r} isn't a file that workers could import: put it in a file, "
                f'or use start_method="fork" instead of {start_method!r}'
            )
        return {}
    if b"__main__" not in task or not main_is_importable():
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
    return data
