"""A checkpoint as one `.ckpt` file of Lightning's, with entries of the caller's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from stratagem.errors import CheckpointError
from stratagem_convert.formats.converting import Writing, read_weights, write_weights


def export_lightning(source: str, path: str, further: Mapping[str, Any]) -> None:
    """Write a checkpoint as a `.ckpt` file, in the place of one before; not collective.

    Weights, optimizers, schedules and progress are in it as `stratagem checkpoint convert` writes them. What is
    written is held in memory once.

    Args:
        source: of the checkpoint: a folder.
        path: of the file.
        further: entries that are added, or replace those; anything that can be pickled.

    Raises:
        CheckpointError: something in the checkpoint has no place in such a file, or writing failed.
    """
    partial = f"{os.path.dirname(os.path.abspath(path))}/.{os.path.basename(path)}.tmp-{secrets.token_hex(8)}"
    try:
        write_weights(read_weights(source), partial, "lightning", Writing())
        content = torch.load(partial, weights_only=True)
        torch.save({**content, **further}, partial)
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(f"{path} can't be written: {error.strerror}; choose another place") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
