"""Settings of torch that hold while a stage runs in a process, and are restored afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from stratagem_trainer.settings import TrainerSettings


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def torch_settings(settings: TrainerSettings) -> Iterator[None]:
    """Apply the trainer's `deterministic`, `benchmark` and `detect_anomaly`; restore torch's settings at the end."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(_WORKSPACE)
    if settings.deterministic:
        # cuBLAS is deterministic only with this workspace setting. It reads the variable when it is first used.
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=settings.deterministic == "warn")
    if settings.benchmark is not None:
        torch.backends.cudnn.benchmark = settings.benchmark
    try:
        with torch.autograd.set_detect_anomaly(settings.detect_anomaly or torch.is_anomaly_enabled()):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
