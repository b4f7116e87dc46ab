"""Measure the hooks and phases of a stage with a profiler. Without a profiler, nothing is wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState

_NAMES = ("simple", "advanced", "pytorch")
_PHASES = {"backward": "backward", "step": "optimizer_step", "zero_grad": "zero_grad", "clip": "clip"}
_TALKS = ("all_reduce", "all_gather", "broadcast", "gather_objects", "barrier")


def make_profiler(given: Any) -> Profiler:
    """Return a profiler, made from its name if needed. None makes one that does nothing.

    Raises:
        ConfigError: the value is something else.
    """
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if given == "simple":
        from stratagem_trainer.profilers.simple import SimpleProfiler

        return SimpleProfiler()
    if given == "advanced":
        from stratagem_trainer.profilers.advanced import AdvancedProfiler

        return AdvancedProfiler()
    if given == "pytorch":
        from stratagem_trainer.profilers.pytorch import PyTorchProfiler

        return PyTorchProfiler()
    raise ConfigError(f"profiler={given!r} must be one of {', '.join(map(repr, _NAMES))}, None or a Profiler")


def instrument(profiler: Profiler, state: StageState) -> None:
    """Measure the hooks, steps and phases of a stage, until `end_profile` is called."""
    profiler.begin(state.stage, state.runtime.rank, state.run_dir)
    state.hooks.wrap(lambda name, method: _timed(profiler, name, method))
    module, prepared = state.module, state.prepared
    if state.stage == "fit":
        _put(module, "training_step", _timed(profiler, "training_step", module.training_step))
    for name, shown in _PHASES.items():
        _put(prepared, name, _timed(profiler, shown, getattr(prepared, name)))
    _put(prepared, "evaluate", _timed(profiler, "evaluation_step", prepared.evaluate))
    load = prepared.dataloader
    _put(prepared, "dataloader", lambda loader: _Waited(profiler, load(loader)))
    collectives = state.runtime.collectives
    for name in _TALKS:
        _put(collectives, name, _timed(profiler, f"communication: {name}", getattr(collectives, name)))


def end_profile(profiler: Profiler, state: StageState) -> None:
    """End measuring, and remove the wrappers from objects that outlive the stage."""
    profiler.finish()
    state.module.__dict__.pop("training_step", None)
    for name in _TALKS:
        vars(state.runtime.collectives).pop(name, None)


class _Waited:
    """An iterable that measures the wait for each batch."""

    def __init__(self, profiler: Profiler, loader: Iterable[Any]) -> None:
        self._profiler, self._loader = profiler, loader

    def __iter__(self) -> Iterator[Any]:
        profiler = self._profiler
        batches = iter(self._loader)
        while True:
            profiler.step()
            with profiler.profile("data wait"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here


def _timed(profiler: Profiler, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(name):
            return method(*args, **kwargs)

    return call


def _put(owner: Any, name: str, value: Any) -> None:
    # patch: profiled methods
    object.__setattr__(owner, name, value)
