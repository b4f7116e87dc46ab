"""`Sweep`: the runs of a sweep, each a `stratagem fit` in a process group of its own."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratagem_sweep.search import written
from stratagem_sweep.trial import ERROR, PRUNED

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from stratagem_sweep.plan import SweepPlan

PREEMPTED = 75
"""Exit code of a fit that has saved and goes on when its command runs again."""
OUTPUT = "output.log"
_POLL_S = 0.1
_PATIENCE_S = 120.0
"""How long runs that are asked to stop may take, for saving, before they are killed."""


@dataclass(frozen=True)
class RunResult:
    """A run of a sweep, as its study has it."""

    number: int
    state: str
    """ "finished", "pruned", "failed", or "stopped" where it can go on."""
    value: float | None
    """The last value of the metric; None where it reported none."""
    settings: Mapping[str, str]
    """Those that the sweep varies, as `--set` takes them."""
    folder: str
    error: str
    """Why it failed, as one sentence."""


class Sweep:
    """The runs of a sweep. What it knows is in its folder: another process can go on with it.

    Args:
        plan: what is asked for.
        folder: absolute; has the record, the study and a folder for each run.
        devices: for each run at a time, what its `--devices` gets; None leaves it as it is.
    """

    def __init__(self, plan: SweepPlan, folder: str, devices: Sequence[str | None]) -> None:
        self.plan = plan
        self.folder = folder
        self.study: optuna.Study = plan.study(folder)
        self._distributions = {each.key: each.distribution() for each in plan.searched}
        self._devices = devices
        self._active: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        """Place among `devices` → number and process of the run that has it."""

    def run(self) -> None:
        """Run what is missing: first runs that were stopped, then new ones. A run that fails doesn't end it.

        Raises:
            KeyboardInterrupt: it was interrupted; all runs have ended, and can go on.
        """
        if self.plan.sampler == "grid" and not self.study.trials:
            for settings in self.plan.grid()[: self.plan.runs]:
                self.study.enqueue_trial(settings)
        stopped = [each.number for each in self._trials("RUNNING")]
        with _terminated_as_interrupted():
            try:
                while True:
                    while len(self._active) < len(self._devices):
                        number = stopped.pop(0) if stopped else self._next()
                        if number is None:
                            break
                        self._start(number)
                    if not self._active:
                        return
                    self._collect()
                    time.sleep(_POLL_S)
            finally:
                self._stop()

    def results(self) -> list[RunResult]:
        """All runs that began, the best first, then those without a value."""
        states = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "stopped"}
        found = [
            RunResult(
                trial.number,
                states[trial.state.name],
                _value(trial),
                {key: written(value) for key, value in trial.params.items()},
                self.run_dir(trial.number),
                str(trial.user_attrs.get(ERROR, "")),
            )
            for trial in self._trials(*states)
        ]
        sign = 1 if self.plan.mode == "min" else -1
        finished = {"finished": 0, "pruned": 1, "stopped": 2, "failed": 3}

        def order(run: RunResult) -> tuple[int, float, int]:
            value = math.inf if run.value is None or math.isnan(run.value) else sign * run.value
            return finished[run.state], value, run.number

        return sorted(found, key=order)

    def run_dir(self, number: int) -> str:
        """Return a run's folder."""
        return os.path.join(self.folder, str(number))

    def _next(self) -> int | None:
        """Draw the settings of a new run; None where there are as many as asked for."""
        if len(self._trials("RUNNING", "COMPLETE", "PRUNED", "FAIL")) >= self.plan.runs:
            return None
        return self.study.ask(self._distributions).number

    def _start(self, number: int) -> None:
        place = next(each for each in range(len(self._devices)) if each not in self._active)
        settings = self.study.trials[number].params
        folder = self.run_dir(number)
        os.makedirs(folder, exist_ok=True)
        words = [*words_for(self.plan.words, settings), "--run-dir", folder]
        if os.path.isdir(os.path.join(folder, "checkpoints")):
            words += ["--ckpt-path", "auto"]
        devices = self._devices[place]
        if devices is not None:
            words += ["--devices", devices]
        command = [
            sys.executable,
            "-m",
            "stratagem_sweep.trial",
            self.folder,
            str(number),
            str(os.getpid()),
            *words,
        ]
        with open(os.path.join(folder, OUTPUT), "ab") as output:
            # Its own session: Ctrl-C reaches this process alone, which then ends the runs in order.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.plan.cwd,
                start_new_session=True,
            )
        self._active[place] = (number, process)
        _say(f"run {number}", "  ".join(f"{key}={written(value)}" for key, value in settings.items()))

    def _collect(self, only_finished: bool = False) -> None:
        """Note the ends of those runs that have ended; only of those that finished or saved, if asked for."""
        for place, (number, process) in list(self._active.items()):
            if process.poll() is not None:
                del self._active[place]
                if process.returncode in (0, PREEMPTED) or not only_finished:
                    self._note(number, process.returncode)

    def _note(self, number: int, exit_code: int) -> None:
        """Tell the study how a run ended; one that was stopped stays a running trial, with which a sweep goes on."""
        from optuna.trial import TrialState

        trial = self.study.trials[number]
        value = _value(trial)
        if exit_code == PREEMPTED:
            _say(f"run {number}", "stopped, and saved")
            return
        if trial.user_attrs.get(PRUNED):
            self.study.tell(number, state=TrialState.PRUNED)
            _say(f"run {number}", f"pruned at {self.plan.monitor}={value:.6g}")
            return
        error = None
        if exit_code != 0:
            output = os.path.join(self.run_dir(number), OUTPUT)
            error = trial.user_attrs.get(ERROR) or f"exit code {exit_code}; see {output}"
        elif value is None or math.isnan(value):
            error = f"{self.plan.monitor} is nan at the end" if value is not None else "it made no validation"
        if error is None:
            self.study.tell(number, value)
            _say(f"run {number}", f"{self.plan.monitor}={value:.6g}")
            return
        self.plan.trial(self.folder, number).set_user_attr(ERROR, error)
        self.study.tell(number, state=TrialState.FAIL)
        _say(f"run {number}", f"failed: {error}")

    def _stop(self) -> None:
        """Let the runs that are still there save and end, and kill what doesn't, or at a second interruption."""
        if not self._active:
            return
        _say("stopping", "runs save and end; interrupt again to kill them")
        for _, process in self._active.values():
            process.terminate()
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while self._active and time.monotonic() < deadline:
                self._collect(only_finished=True)
                time.sleep(_POLL_S)
        finally:
            for _, process in self._active.values():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._active.clear()

    def _trials(self, *states: str) -> list[FrozenTrial]:
        return [trial for trial in self.study.trials if trial.state.name in states]


def words_for(words: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return what `stratagem fit` gets: the sweep's words, and settings over them."""
    return [
        *words,
        *(word for key, value in settings.items() for word in ("--set", f"{key}={written(value)}")),
    ]


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the sweep as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _value(trial: FrozenTrial) -> float | None:
    reported = trial.intermediate_values
    return reported[max(reported)] if reported else None


def _say(what: str, line: str) -> None:
    print(f"  {what:<12}{line}", file=sys.stderr, flush=True)
