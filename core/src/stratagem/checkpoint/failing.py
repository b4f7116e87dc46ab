"""A checkpoint that can't be written is a failure of the run, which has begun, and names its path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem.errors import CheckpointError


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Around the save of a checkpoint: an error names `path`, and the command line exits with 1 for it.

    Raises:
        CheckpointError: as what is within raises it.
    """
    try:
        yield
    except CheckpointError as error:
        error.exit_code = 1
        if path not in str(error):
            error.args = (f"the checkpoint {path} can't be written: {error}",)
        raise
