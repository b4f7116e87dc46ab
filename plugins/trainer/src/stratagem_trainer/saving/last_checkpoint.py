"""`save_checkpoint` after a fit: its objects are gone, so that what it kept of its last step is copied."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratagem_trainer.stage.progress import Progress


def copy_last(callbacks: Sequence[Any], progress: Progress, path: str, weights_only: bool) -> None:
    """Copy the checkpoint that the last fit kept of its last step.

    Args:
        callbacks: each a `ModelCheckpoint`.
        progress: where the fit has ended.
        path: of the copy.
        weights_only: whether the copy is to have the weights alone, which none of theirs has.

    Raises:
        CheckpointError: it kept none; says what to do.
    """
    source = None if weights_only else _kept(callbacks, progress.step)
    if source is None or "://" in path:
        what = "with the weights alone " if weights_only else ""
        raise CheckpointError(
            f"the fit is over, and a checkpoint {what}of its last step, {progress.all_steps}, wasn't kept in a "
            "folder that could be copied: pass callbacks=ModelCheckpoint(save_last=True), or call save_checkpoint in "
            "on_train_end"
        )
    if os.path.abspath(source) == os.path.abspath(path):
        return
    partial = f"{path.rstrip(os.sep)}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(partial, path)


def _kept(callbacks: Sequence[Any], step: int) -> str | None:
    for callback in callbacks:
        for path in callback.kept_paths():
            if path and "://" not in path and _step_of(path) == step:
                return str(os.path.realpath(path))
    return None


def _step_of(path: str) -> int | None:
    """Steps at a checkpoint from which a fit can go on; None of any other."""
    import torch
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem import LocalCollectives

    try:
        reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path, verify=False)
    except CheckpointError:
        return None
    progress = reader.state.get("progress")
    return int(progress["step"]) if progress else None
