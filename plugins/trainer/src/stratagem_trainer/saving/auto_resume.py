"""`AutoResume`: lets a fit whose workers were started again go on where the last ones left off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stratagem_launch import can_save_restart_state, restart_state, save_restart_state

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem import CheckpointReader, Runtime

_KEPT = 2
"""The checkpoint that is being written, and the one before, which may not have been replaced yet."""

_fits = 0


class AutoResume:
    """What earlier attempts at this fit left on the nodes. Collective to construct.

    Each rank says which checkpoint it is going to write. A save is collective, so that whatever
    has been completed is known on every node that took part in it.

    Args:
        runtime: live.

    Attributes:
        run_dir: of the attempt before; None in the first one.
    """

    def __init__(self, runtime: Runtime) -> None:
        global _fits
        # A script that fits twice begins again with its first fit, which then is over at once.
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
        """Keep the path of the run's folder for the next attempt, and return it."""
        self.run_dir = run_dir
        self._leave()
        return run_dir

    def saving(self, path: str, step: int) -> None:
        """Keep the path of a checkpoint that is about to be written, with this many optimizer steps."""
        others = [entry for entry in self._checkpoints if entry[0] != path]
        place = _place(path)
        # Of each place: those in memory may be gone with a node, and those on disk are few.
        beside = [entry for entry in others if _place(entry[0]) == place][: _KEPT - 1]
        elsewhere = [entry for entry in others if _place(entry[0]) != place]
        self._checkpoints = [(path, step), *beside, *elsewhere]
        self._leave()

    def newest(self) -> CheckpointReader | None:
        """Open the newest checkpoint of earlier attempts that is whole; None where there is none. Collective."""
        for path, step in self._checkpoints:
            try:
                reader = self._runtime.session.checkpointer.open(path)
            except CheckpointError:
                continue  # not whole: the attempt ended while it was written
            if not is_unchanged(reader, self._runtime.is_main):
                continue
            self._runtime.session.refuse_other_ranks(reader)
            if self._runtime.is_main:
                line = f"going on from {path}, step {step}, on {self._runtime.world_size} ranks"
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
    """Whether a checkpoint is undamaged; prints what is damaged. Collective.

    Where the fit itself chooses the checkpoint, a damaged one must leave the choice to the one before it. So this is
    known before anything is loaded.

    Args:
        reader: opened.
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
    """The scheme of a URL; nothing for a path."""
    scheme, found, _ = path.partition("://")
    return scheme if found else ""
