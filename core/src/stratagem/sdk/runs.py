"""From a configuration to a run: the base of the command line and the trainer."""

from stratagem.config import RunOptions
from stratagem.resolve.defaults import Defaults
from stratagem.resolve.launcher import installed_launcher
from stratagem.resolve.run import Run, assemble
from stratagem.resolve.select import choose_strategy
from stratagem.runtime.script_flags import run_config

__all__ = ["Defaults", "Run", "RunOptions", "assemble", "choose_strategy", "installed_launcher", "run_config"]
