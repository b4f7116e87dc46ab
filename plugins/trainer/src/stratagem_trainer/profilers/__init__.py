"""Measure where a run spends its time. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_trainer.profilers.advanced import AdvancedProfiler
    from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler
    from stratagem_trainer.profilers.pytorch import PyTorchProfiler
    from stratagem_trainer.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".advanced": "AdvancedProfiler",
            ".base": "PassThroughProfiler Profiler",
            ".pytorch": "PyTorchProfiler",
            ".simple": "SimpleProfiler",
        },
    )
