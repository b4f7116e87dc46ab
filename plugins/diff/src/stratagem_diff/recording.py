"""`record`: two lines in your own program that record its training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from stratagem_diff.recorder import Recorder, RecordOptions


@contextmanager
def record(
    model: nn.Module, optimizer: Any, folder: str | os.PathLike[str], **options: Any
) -> Iterator[Recorder]:
    """Record a model's training within the block: values, gradients, optimizer states and parameters.

    Each rank calls it, with the same folder, after the model has been wrapped and its optimizer made; not collective.
    Nothing of the model is changed, and all hooks are gone after the block.

    Args:
        model: the user's model, also within DistributedDataParallel, `fully_shard`, `torch.compile` or an engine.
        optimizer: the optimizer, or a list of several; None for all that step the model's parameters.
        folder: of the record, which is replaced.
        options: fields of `RecordOptions`, such as steps=3.

    Raises:
        UsageError: the folder can't be written to.
    """
    recorder = Recorder(folder, RecordOptions(**options))
    given = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
    recorder.watch(model, given)
    try:
        yield recorder
    finally:
        recorder.close()
