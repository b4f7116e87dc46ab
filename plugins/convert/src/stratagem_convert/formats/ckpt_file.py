"""Write a checkpoint as a `.ckpt` file of Lightning, with further entries."""

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
    """Write a checkpoint as a `.ckpt` file, and replace an existing one. Not collective.

    The file has weights, optimizers, schedules and progress in the form of `stratagem checkpoint convert`. The whole
    content is in memory once.

    Args:
        source: folder of the checkpoint.
        path: path of the file.
        further: entries to add or replace; anything that can be pickled.

    Raises:
        CheckpointError: the file format can't hold something of the checkpoint, or writing failed.
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
