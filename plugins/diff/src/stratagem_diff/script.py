"""Record a program that isn't changed: the model is found when it is first called for training."""

from __future__ import annotations

import runpy
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from stratagem.errors import UsageError
from stratagem_diff.recorder import Recorder


class ModelFinder:
    """Lets a recorder watch the outermost model of the first call that trains, before that call begins.

    Which module has which is known from torch's hook on their registration, so that it finds a model also where a
    program calls some of its layers alone.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._parents: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._handle: Any = register_module_module_registration_hook(self._registered)
        self._call = nn.Module.__call__
        finder = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            finder.find(module)
            return finder._call(module, *args, **kwargs)

        # A global forward pre-hook would be too late: the called module's hooks are listed by then.
        # patch: model finder
        nn.Module.__call__ = call  # type: ignore[method-assign]  # until the model is found

    def close(self) -> None:
        """Undo what is still changed, and close the recorder."""
        self._stop()
        self._recorder.close()

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            # patch: model finder
            nn.Module.__call__ = self._call  # type: ignore[method-assign]  # as it was

    def _registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            self._parents[child] = weakref.ref(parent)

    def find(self, module: nn.Module) -> None:
        """Look for the model of a module that is called, and watch it if it is one that trains."""
        if torch.compiler.is_compiling() or self._recorder.is_watching or not torch.is_grad_enabled():
            return
        top, seen = module, {module}
        while (
            (of := self._parents.get(top)) is not None and (parent := of()) is not None and parent not in seen
        ):
            seen.add(parent)
            top = parent
        if any(parameter.requires_grad for parameter in top.parameters()):
            self._stop()
            self._recorder.watch(top)


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Record the first model that is trained within the block."""
    finder = ModelFinder(recorder)
    try:
        yield
    finally:
        finder.close()


def run_recorded(program: str, arguments: Sequence[str], recorder: Recorder, is_module: bool = False) -> None:
    """Run a program as Python would, and record its training.

    Args:
        program: a script; the name of a module with `is_module`.
        arguments: what it gets in sys.argv.
        recorder: where to.
        is_module: as `python -m`.

    Raises:
        UsageError: there is no such script, or it trained nothing.
    """
    if not is_module and not Path(program).is_file():
        raise UsageError(f"there is no script {program}")
    before_argv, before_path = sys.argv, sys.path[:]
    sys.argv = [program, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(program).resolve().parent))
    try:
        with recorded(recorder):
            if is_module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before_argv, before_path
    if not recorder.is_watching:
        raise UsageError(
            f"{program} called no module with parameters to train in this process: if it starts processes itself, "
            "put `with stratagem_diff.record(model, optimizer, folder):` around its training"
        )
