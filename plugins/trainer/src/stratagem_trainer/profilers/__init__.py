"""Where a run's time goes; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_trainer.profilers.advanced import AdvancedProfiler
    from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler
    from stratagem_trainer.profilers.pytorch import PyTorchProfiler
    from stratagem_trainer.profilers.simple import SimpleProfiler

_WHERE = {
    "AdvancedProfiler": "advanced",
    "PassThroughProfiler": "base",
    "Profiler": "base",
    "PyTorchProfiler": "pytorch",
    "SimpleProfiler": "simple",
}

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
