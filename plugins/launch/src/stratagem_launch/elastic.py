"""`ElasticLauncher`: starts and supervises the workers of this node by torch elastic."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stratagem import Launcher, LaunchPlan, Task, errors
from stratagem.errors import StratagemError, UsageError, WorkerError
from stratagem.sdk.processes import check_start_method
from stratagem_launch.fork_check import require_forkable
from stratagem_launch.fork_server import preload_fork_server
from stratagem_launch.launch_dir import LOG_DIR_VARIABLE, Failure, Job, LaunchDir
from stratagem_launch.leftovers import folder_lock
from stratagem_launch.main_module import is_being_imported_by_worker, preparation
from stratagem_launch.rendezvous.config import agent_ends_workers_in_time, launch_config, require_endpoint
from stratagem_launch.rendezvous.joining import RunEndedError
from stratagem_launch.rendezvous.network import gloo_variables, loopback_variables
from stratagem_launch.signal_watch import signal_watch
from stratagem_launch.stop_signals import StopRequest, stop_signals
from stratagem_launch.supervision import Supervision
from stratagem_launch.transfer.pickling import sending
from stratagem_launch.worker import run_worker, threads_per_worker, unguarded_sentence


class ElasticLauncher(Launcher):
    """Starts one process per rank on this node. The elastic agent restarts and ends them as a group.

    Args:
        plan: the number of processes, and how to start them.

    Raises:
        UsageError: the plan has an unknown start method, no process, or several nodes without a rendezvous.
    """

    worker_environment = "torchelastic"
    keeps_output = True

    def __init__(self, plan: LaunchPlan) -> None:
        check_start_method(plan.start_method)
        if plan.processes_per_node < 1:
            raise UsageError(
                f"{plan.processes_per_node} processes per node were requested; at least 1 is needed"
            )
        if plan.num_nodes > 1 and not plan.rdzv_endpoint:
            raise UsageError(
                f"{plan.num_nodes} nodes need a rendezvous: "
                'give rdzv_endpoint="HOST:PORT", with a host that all nodes can reach'
            )
        log_dir = plan.log_dir or os.environ.get(LOG_DIR_VARIABLE)
        self.plan = plan if log_dir == plan.log_dir else replace(plan, log_dir=log_dir)

    @classmethod
    def preload(cls, modules: Sequence[str]) -> None:
        """Start the fork server; see `preload_fork_server`."""
        preload_fork_server(modules)

    def launch(self, task: Task) -> Any:
        """Run `task` in every rank; see `Launcher.launch`.

        Raises:
            ConfigError: the endpoint's host has no address; see `require_endpoint`.
            SystemExit: SIGTERM, SIGHUP or SIGQUIT reached this process and all workers have ended; the code is 128 +
                the signal's number. It is `Preempted` if the workers obey this signal and have saved.
        """
        if is_being_imported_by_worker():
            # This is a worker that imports an unguarded script; its launcher reports that once.
            raise SystemExit(1)
        forked = self.plan.start_method == "fork"
        if forked:
            environ = {**os.environ, **self.plan.environ}
            require_forkable(threads_per_worker(environ, self.plan.processes_per_node))
            from stratagem.sdk.collectives import forget_meshes  # it imports torch

            # Forked ranks would destroy this process's groups, whose threads they don't have.
            forget_meshes()
        require_endpoint(self.plan)
        if self.plan.log_dir is not None:
            from stratagem_launch.logs import refuse_unwritable  # it imports torch

            refuse_unwritable(self.plan.log_dir)
        if self.plan.start_method == "forkserver":
            # The server imports torch while this process pickles the task.
            preload_fork_server((*self.plan.preload, *task.preload))
        launch_dir = LaunchDir.create()
        with contextlib.ExitStack() as held:
            held.callback(launch_dir.remove)
            held.enter_context(folder_lock(launch_dir.path))
            prepared = {} if forked else held.enter_context(self._sent(launch_dir, task))
            self._put_job(launch_dir, prepared)
            with (
                stop_signals(launch_dir) as stop,
                _watch() as is_ending,
                Supervision(launch_dir, is_ending, stop, self.plan.max_restarts > 0) as eye,
            ):
                started = self._run(launch_dir, task, eye, stop)
                # A spare node has started no ranks: its workers were those of an earlier attempt.
                preempted = eye.preempted() if started else None
            if preempted is not None:
                raise preempted
            return pickle.loads(launch_dir.get("result")) if 0 in started else None

    @contextlib.contextmanager
    def _sent(self, launch_dir: LaunchDir, task: Task) -> Iterator[dict[str, Any]]:
        """Write the pickled task for the workers; yield what a fresh interpreter needs to load it."""
        method = self.plan.start_method
        with sending(task, method, launch_dir.path) as content:
            prepared = preparation(content, method)
            launch_dir.put("task", content)
            yield prepared

    def _put_job(self, launch_dir: LaunchDir, prepared: dict[str, Any]) -> None:
        endpoint = self.plan.rdzv_endpoint
        network = gloo_variables(endpoint, os.environ) if endpoint else loopback_variables()
        job = Job(
            launcher_pid=os.getpid(),
            environ={**network, **os.environ, **self.plan.environ},
            default_start_method=multiprocessing.get_start_method(allow_none=True),
            has_store=self.plan.is_single_node,
            log_dir=self.plan.log_dir and os.path.abspath(self.plan.log_dir),
            preparation=prepared,
        )
        launch_dir.put("job", pickle.dumps(job))

    def _run(
        self, launch_dir: LaunchDir, task: Task, supervision: Supervision, stop: StopRequest
    ) -> dict[int, Any]:
        """Run the agent to its end; return its result for each rank of this node. A spare node has no ranks."""
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous.api import RendezvousError
        from torch.distributed.launcher.api import elastic_launch

        plan = self.plan
        run_id = plan.run_id or ("stratagem" if plan.num_nodes > 1 else uuid.uuid4().hex)
        entrypoint: Callable[..., None] | str = run_worker
        arguments: tuple[Any, ...] = (launch_dir.path,)
        if plan.start_method == "popen":
            entrypoint = sys.executable
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # typeshed leaves it out
            arguments = (*flags, "-m", "stratagem_launch.worker", launch_dir.path)
        elif plan.start_method == "fork":
            arguments = (launch_dir.path, task)
        try:
            with _quiet(), _variable_kept("TORCHELASTIC_SIGNALS_TO_HANDLE"), warnings.catch_warnings():
                # Python 3.12 warns about forking with threads; `require_forkable` has checked that it works.
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                started: dict[int, Any] = elastic_launch(
                    launch_config(plan, run_id, launch_dir.path), entrypoint
                )(*arguments)
            unfinished = supervision.unfinished(task.may_exit)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            failure: Failure | None = supervision.first_failure(codes, task.may_exit)
        except SignalException as error:
            if error.sigval == signal.SIGINT:  # torch 2.9 handles Ctrl-C too
                raise KeyboardInterrupt from None
            raise SystemExit(128 + error.sigval) from None
        except SystemExit:
            if stop.number is None:
                raise
            failure = supervision.failure_so_far()
        except RunEndedError:
            return {}
        except RendezvousError as error:
            raise errors.RendezvousError(
                f"the {plan.num_nodes} nodes of this run didn't find each other at {plan.rdzv_endpoint}: {error}"
            ) from error
        else:
            if unfinished is None:
                return started
            failure = unfinished
        if stop.number is not None or failure is None:
            raise _not_saved(failure, stop)
        raise _raised_here(failure)


def _not_saved(failure: Failure | None, stop: StopRequest) -> WorkerError:
    """Return the error of a run that was asked to stop and couldn't save."""
    why = f"its ranks didn't save within the grace period of {stop.grace_period_s:g} s"
    if failure is not None:
        why = f"rank {failure.rank} on {failure.host} {'failed: ' * failure.raised}{failure.line}"
    return WorkerError(
        f"{stop.name} asked this run to stop, and {why}: nothing was saved; it can resume from its newest checkpoint",
        rank=failure.rank if failure else 0,
        host=failure.host if failure else "",
        traceback=failure.traceback if failure else "",
        exit_code=128 + (stop.number or 0),
    )


def _raised_here(failure: Failure) -> StratagemError:
    """Turn a worker's failure into the launching process's error."""
    if failure.usage:
        error: StratagemError = UsageError(failure.line.partition(": ")[2] or failure.line)
        if failure.exception is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(failure.exception)
        error.worker_traceback = failure.traceback  # type: ignore[attr-defined]  # exceptions take any attribute
        return error
    who = f"rank {failure.rank} on {failure.host}"
    if failure.is_whole:
        message = failure.line
    elif failure.raised:
        message = f"{who} failed: {failure.line}"
    elif "before it could begin" in failure.line:
        return UsageError(f"{who} {failure.line}: {unguarded_sentence()}")
    else:
        message = f"{who} {failure.line}"
    return WorkerError(
        message,
        rank=failure.rank,
        host=failure.host,
        traceback=failure.traceback,
        exit_code=failure.exit_code,
    )


def _watch() -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """Watch for ending signals if this torch's agent would wait half a minute for workers that ignore them."""
    return contextlib.nullcontext(lambda: False) if agent_ends_workers_in_time() else signal_watch()


@contextlib.contextmanager
def _variable_kept(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the agent's own report of failures, since they are raised as errors. LOGLEVEL shows it."""
    if "LOGLEVEL" in os.environ:
        yield
        return
    prefixes = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
    names = [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]
    loggers = [logging.getLogger(name) for name in (*names, "torchelastic-events-null")]

    def nothing(record: logging.LogRecord) -> bool:
        return False

    for logger in loggers:
        logger.addFilter(nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(nothing)
