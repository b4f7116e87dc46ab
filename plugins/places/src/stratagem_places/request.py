"""`PlaceRequest`: what a place is asked to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem.errors import ConfigError, short

LOG_DIR_VARIABLE = "STRATAGEM_LOG_DIR"
"""Where our launcher keeps what each worker prints, unless the run says so itself."""


@dataclass(frozen=True, kw_only=True)
class PlaceRequest:
    """One command, to be run on every node.

    A place whose nodes see other paths than this machine gives them by `dataclasses.replace`.
    """

    stage: str
    """The command's name, as "fit"."""
    words: tuple[str, ...]
    """What follows it, without flags of places and `--run-dir`."""
    run_dir: str
    """The run's folder, absolute; checkpoints, metrics and what the place keeps go there."""
    takes_run_dir: bool = True
    """Whether the command has `--run-dir`; `stratagem run SCRIPT` has none."""
    code_dir: str
    """The snapshot of the code, absolute."""
    subfolder: str = ""
    """Working directory of the nodes, relative to `code_dir`."""
    min_nodes: int = 1
    """With how many nodes the run continues; less than `max_nodes` where they may come and go."""
    max_nodes: int = 1
    devices: int | None = None
    """Per node; None where that depends on the machine (auto, or all)."""
    accelerator: str = "auto"
    max_restarts: int = 0
    """How often failed workers are started again; a place may count restarts of the whole run, too."""
    grace_period_s: float = 30.0
    """What a save may take once the run is asked to stop."""

    def __post_init__(self) -> None:
        # These become lines of scripts and manifests: a line break would begin another line there.
        for name in ("run_dir", "code_dir", "subfolder"):
            if any(ord(character) < 32 or ord(character) == 127 for character in getattr(self, name)):
                flag = "--run-dir" if name == "run_dir" else "the folder of the code"
                raise ConfigError(
                    f"{flag} is {short(getattr(self, name))}, which has a line break or another control "
                    "character: name a folder without"
                )

    @property
    def name(self) -> str:
        """Name of the run: that of its folder."""
        return os.path.basename(self.run_dir)

    @property
    def is_elastic(self) -> bool:
        """Whether nodes may come and go."""
        return self.min_nodes < self.max_nodes

    @property
    def working_dir(self) -> str:
        """Working directory of the nodes, absolute."""
        return os.path.join(self.code_dir, self.subfolder) if self.subfolder else self.code_dir

    @property
    def place_dir(self) -> str:
        """Folder for what the place keeps of the run: scripts, manifests, output."""
        return os.path.join(self.run_dir, "place")

    @property
    def output_dir(self) -> str:
        """Folder for what nodes print, in files `*.txt`, which `Place.logs` reads in the order of their names."""
        return os.path.join(self.place_dir, "output")

    @property
    def log_dir(self) -> str:
        """Folder for what each rank prints, which our launcher writes where `variables` are set."""
        return os.path.join(self.place_dir, "logs")

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that `node_command` needs on every node."""
        return {LOG_DIR_VARIABLE: self.log_dir}

    def node_command(self, python: str = sys.executable) -> tuple[str, ...]:
        """Return the program and arguments that every node runs, once, in `working_dir`.

        Where `max_nodes` is more than 1, the place also sets on each node MASTER_ADDR and MASTER_PORT, an address of
        node 0 and a port that is free there, and NODE_RANK, which is needed unless the run is elastic and the
        address is one by which node 0 knows itself. It sets none of them for one node, nor RANK and WORLD_SIZE, and
        unsets what of another launcher's variables would be recognised first, as srun's.

        It exits with 0, 75 (asked to stop, and saved: the same command continues by `--ckpt-path auto`), 2
        (refused) or another code (failed).

        Args:
            python: with Stratagem installed, on the nodes.
        """
        flags = ["--run-dir", self.run_dir] if self.takes_run_dir else []
        return (python, "-m", "stratagem", self.stage, *flags, *self.words)
