"""Errors of saving: they name the checkpoint's path, and are failures of a run that has begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem.errors import CheckpointError


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Use it around the save of a checkpoint. Its errors then name `path`, and make the command line exit with 1.

    Raises:
        CheckpointError: the save raised it.
    """
    try:
        yield
    except CheckpointError as error:
        error.exit_code = 1
        if path not in str(error):
            error.args = (f"the checkpoint {path} can't be written: {error}",)
        raise
