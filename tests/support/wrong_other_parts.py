"""Extensions, loggers and places that do one thing wrong each."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from stratagem_places import PlaceStatus
from stratagem_places.local import LocalPlace
from stratagem_trainer.loggers.base import Logger
from wrong_parts import caught_by

from stratagem import Prepared, PreparedWrapper, hookimpl


class Lines(Logger):
    """A right one: a line of JSON per row."""

    path: Path | None = None

    def open(self, run_dir: str, config: Any, resumed_step: int | None = None) -> None:
        self.path = Path(run_dir, "lines.jsonl")
        if resumed_step is not None and self.path.exists():
            kept = [line for line in read_lines(run_dir) if line[0] <= resumed_step]
            self.path.write_text("".join(f"{json.dumps(line)}\n" for line in kept))

    def write(self, rows: Any) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.writelines(f"{json.dumps([row.step, row.values])}\n" for row in rows)


def read_lines(run_dir: str) -> list[Any]:
    return [json.loads(line) for line in Path(run_dir, "lines.jsonl").read_text().splitlines()]


@caught_by("logger", "made", "overrides neither", read=read_lines)
class TakesNothing(Logger):
    pass


@caught_by("logger", "takes_rows", "JSON compliant", read=read_lines)
class RefusesNan(Lines):
    def write(self, rows: Any) -> None:
        for row in rows:
            json.dumps(row.values, allow_nan=False)
        super().write(rows)


@caught_by("logger", "reads_back", "is read back as step", read=read_lines)
class KeepsWhatWasKilled(Lines):
    def open(self, run_dir: str, config: Any, resumed_step: int | None = None) -> None:
        super().open(run_dir, config)


@caught_by("logger", "drops_when_muted", "has no attribute", read=read_lines)
class HasNoExperiment(Lines):
    @property
    def experiment(self) -> Any:
        return None


@caught_by("logger", "changes_nothing", "the run that is logged", read=read_lines)
class DrawsNumbers(Lines):
    def log_hyperparams(self, params: Any) -> None:
        pass

    def open(self, run_dir: str, config: Any, resumed_step: int | None = None) -> None:
        super().open(run_dir, config, resumed_step)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(0.5)


class Around:
    """A right extension, around `setup`."""

    prepared: Any = PreparedWrapper

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Generator[None, Prepared, Prepared]:
        return self.prepared((yield))  # type: ignore[no-any-return]  # a class or a function


@caught_by("extension", "made", "setup")
class LostItsMark(Around):
    def setup(self, request: Any) -> Any:
        return None


class _Halves(PreparedWrapper):
    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        return self.inner.forward_backward(*args, divisor=2 * divisor, sync=sync)


@caught_by("extension", "changes_nothing", "the run with it")
class HalvesLosses(Around):
    prepared = _Halves


class _StepsApart(PreparedWrapper):
    def restore_module(self) -> None:
        self.inner.restore_module()

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        return self.inner.forward_backward(*args, divisor=divisor, sync=False)

    def replicas(self) -> Any:
        return iter(())

    def complete_gradients(self, index: int) -> None:
        pass


@caught_by("extension", "ranks_agree", "")
class KeepsRanksApart(Around):
    prepared = _StepsApart


@caught_by("extension", "errors_pass", "is raised as")
class HidesErrors(Around):
    @hookimpl(wrapper=True)
    def launch(self, request: Any) -> Generator[None, Any, Any]:
        launcher = yield
        launch = launcher.launch

        def quiet(task: Any) -> Any:
            try:
                return launch(task)
            except ArithmeticError:
                return None

        launcher.launch = quiet
        return launcher


@caught_by("place", "made", "which is not a reason")
class RefusesPlacesWithoutReason(LocalPlace):
    def why_not(self) -> str | None:
        return "no"


@caught_by("place", "renders", "writes files")
class WritesToRender(LocalPlace):
    def render(self, request: Any) -> str:
        Path(request.code_dir, "script.sh").write_text("")
        return super().render(request)


@caught_by("place", "refuses_nodes", "but isn't refused")
class IgnoresNodes(LocalPlace):
    def render(self, request: Any) -> str:
        return f"cd /nowhere && run program.py {sorted(request.variables)}".replace("3", "")


@caught_by("place", "imports_no_torch", "imports torch")
class ImportsTorch(LocalPlace):
    """This module does."""


@caught_by("place", "runs_and_stops", "a command that exits with 3")
class TakesAllForSuccess(LocalPlace):
    def status(self, run: Any) -> PlaceStatus:
        found = super().status(run)
        return PlaceStatus("finished", exit_code=0) if found.is_over else found
