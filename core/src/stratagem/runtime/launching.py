"""A task in every rank of a run, with the one `Runtime` that the run has in each process."""

from __future__ import annotations

import atexit
import sys
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Callable

import torch

from stratagem.errors import UsageError
from stratagem.launchers.base import Task
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.out_of_memory import device_memory_error
from stratagem.runtime.runtime import Runtime

if TYPE_CHECKING:
    from stratagem.config import RunConfig


def launch(run: Run, task: Task, runtime: Runtime | None = None) -> Any:
    """Call `task.function(runtime, *task.args)` in every rank of `run`; see `Launcher.launch`.

    Args:
        run: assembled in this process.
        task: what ranks do.
        runtime: the one to use where this process is a rank itself; one is made where it is None.
    """
    launcher = run.launcher()
    if launcher.in_process:
        return launcher.launch(replace(task, function=_work, args=(run, runtime, task.function, task.args)))
    config = run.worker_config(launcher)
    return launcher.launch(replace(task, function=_work, args=(config, None, task.function, task.args)))


def attach(run: Run, runtime: Runtime) -> None:
    """Make the calling script a rank of `run` until it ends.

    Raises:
        UsageError: `run` needs processes that aren't running.
    """
    if not run.launcher().in_process:
        raise UsageError(
            f"launch() without a function needs {run.plan.world_size} running processes: start the script with "
            "`stratagem run`, or pass the function that each rank is to run"
        )
    runtime.open(run, in_launching_process=True)
    # Python keeps the error that ends a script. Other ranks needn't wait for a rank that failed.
    atexit.register(lambda: runtime.close(failed=getattr(sys, "last_value", None) is not None))


def _work(
    run: Run | RunConfig, runtime: Runtime | None, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """What every worker does."""
    here = run if isinstance(run, Run) else assemble(run)
    if runtime is None:
        arguments = {field.name: getattr(here.config, field.name) for field in fields(here.config)}
        runtime = Runtime(plugins=arguments.pop("extensions"), **arguments)
    runtime.open(here, in_launching_process=isinstance(run, Run))
    try:
        result = function(runtime, *args)
    except BaseException as error:
        failed_at = time.time()
        of_memory = None
        if isinstance(error, torch.OutOfMemoryError) and not isinstance(error, UsageError):
            with suppress(
                Exception
            ):  # a report that fails must neither hide the error nor keep the others waiting
                of_memory = device_memory_error(error, runtime.session)
        ended = of_memory or error
        ended.failed_at = failed_at  # type: ignore[attr-defined]  # closing makes the others fail, too
        runtime.close(failed=True)
        if of_memory is not None:
            raise of_memory from error
        raise
    runtime.close()
    return result
