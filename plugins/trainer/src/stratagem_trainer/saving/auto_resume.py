"""`AutoResume`: resume a fit from its newest checkpoint after its workers were restarted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stratagem_launch import can_save_restart_state, restart_state, save_restart_state

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem import CheckpointReader, Runtime

_KEPT = 2
"""Number of checkpoints to remember: the one that is being written, and the last complete one."""

_fits = 0


class AutoResume:
    """Keeps the run folder and checkpoints of a fit on each node, for the next attempt. Collective to construct.

    An attempt is one start of the workers. Each node saves the path of a checkpoint before it is written. Saving is
    collective, so each node that took part in a complete checkpoint knows its path.

    Args:
        runtime: an entered runtime.

    Attributes:
        run_dir: the run folder of the previous attempt; None in the first attempt.
    """

    def __init__(self, runtime: Runtime) -> None:
        global _fits
        # A script that fits twice runs both fits again. The first one resumes at its end, and so ends immediately.
        self._name = f"fit{_fits}"
        _fits += 1
        self._runtime = runtime
        states = (
            runtime.collectives.gather_objects(restart_state(self._name)) if can_save_restart_state() else []
        )
        left = [state for state in states if state is not None]
        latest = max(left, key=lambda state: state["attempt"], default=None)
        self.run_dir: str | None = latest["run_dir"] if latest else None
        found = {path: step for state in left for path, step in state["checkpoints"]}
        self._checkpoints: list[tuple[str, int]] = sorted(
            found.items(), key=lambda item: item[1], reverse=True
        )

    def begin(self, run_dir: str) -> str:
        """Save the path of the run folder for the next attempt, and return it."""
        self.run_dir = run_dir
        self._leave()
        return run_dir

    def saving(self, path: str, step: int) -> None:
        """Save the path of a checkpoint that is about to be written, and its number of optimizer steps."""
        others = [entry for entry in self._checkpoints if entry[0] != path]
        place = _place(path)
        # Remember some of each URL scheme: those in memory may be lost with a node, and are written more often.
        beside = [entry for entry in others if _place(entry[0]) == place][: _KEPT - 1]
        elsewhere = [entry for entry in others if _place(entry[0]) != place]
        self._checkpoints = [(path, step), *beside, *elsewhere]
        self._leave()

    def newest(self) -> CheckpointReader | None:
        """Open the newest complete checkpoint of earlier attempts; None if there is none. Collective."""
        for path, step in self._checkpoints:
            try:
                reader = self._runtime.session.checkpointer.open(path)
            except CheckpointError:
                continue  # incomplete: the attempt ended while it was written
            if not is_unchanged(reader, self._runtime.is_main):
                continue
            self._runtime.session.refuse_other_ranks(reader)
            if self._runtime.is_main:
                line = f"resuming from {path}, step {step}, on {self._runtime.world_size} ranks"
                print(f"  {'restarted':<12}{line}", file=sys.stderr, flush=True)
            return reader
        return None

    def _leave(self) -> None:
        if self._runtime.local_rank == 0:
            attempt = self._runtime.session.run.environment.attempt
            state: dict[str, Any] = {
                "attempt": attempt,
                "run_dir": self.run_dir,
                "checkpoints": self._checkpoints,
            }
            save_restart_state(self._name, state)


def is_unchanged(reader: CheckpointReader, is_main: bool) -> bool:
    """Return whether a checkpoint is undamaged; print what is damaged. Collective.

    A fit that chooses its checkpoint itself skips a damaged one, and takes the one before. So it verifies the whole
    checkpoint before anything is loaded.

    Args:
        reader: a reader of the checkpoint.
        is_main: whether this rank prints.
    """
    try:
        reader.verify()
    except CheckpointError as error:
        if is_main:
            print(f"  {'skipped':<12}{reader.path}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _place(path: str) -> str:
    """Return the scheme of a URL; "" for a path."""
    scheme, found, _ = path.partition("://")
    return scheme if found else ""
