"""Environments: this process's rank in a run, read from its launcher's variables."""

from __future__ import annotations

from stratagem.environments.base import Environment
from stratagem.environments.detect import detect_environment

__all__ = ["Environment", "detect_environment"]
