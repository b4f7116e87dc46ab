"""`save_checkpoint` after a fit: copy the checkpoint of its last step.

The fit's objects no longer exist, so that no new checkpoint can be written.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratagem_trainer.stage.progress import Progress


def copy_last(callbacks: Sequence[Any], progress: Progress, path: str, weights_only: bool) -> None:
    """Copy the checkpoint of the last step that a callback of the last fit has kept.

    Args:
        callbacks: `ModelCheckpoint` callbacks.
        progress: progress of the fit at its end.
        path: path of the copy.
        weights_only: whether to write the weights only. No kept checkpoint is like that, so this is refused.

    Raises:
        CheckpointError: no callback has kept that checkpoint. Says what to do.
    """
    source = None if weights_only else _kept(callbacks, progress.step)
    if source is None or "://" in path:
        what = "with the weights alone " if weights_only else ""
        raise CheckpointError(
            f"the fit is over, and no callback has kept a checkpoint {what}of its last step, {progress.all_steps}, "
            "in a local folder to copy: pass callbacks=ModelCheckpoint(save_last=True), or call save_checkpoint in "
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
    """Return the number of steps of a checkpoint from which a fit can resume; None for other paths."""
    import torch
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem import LocalCollectives

    try:
        reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path, verify=False)
    except CheckpointError:
        return None
    progress = reader.state.get("progress")
    return int(progress["step"]) if progress else None
