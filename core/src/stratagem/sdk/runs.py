"""From a configuration to a run: what the command line and the trainer are built on."""

from stratagem.defaults import Defaults
from stratagem.run import Run, assemble, preload_for
from stratagem.runtime import launch
from stratagem.select import choose_strategy

__all__ = [
    "Defaults",
    "Run",
    "assemble",
    "choose_strategy",
    "launch",
    "preload_for",
]
