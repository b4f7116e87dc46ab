"""Environments: who this process is among all of a run, read from its launcher's variables."""

from __future__ import annotations

from stratagem.environment.base import Environment
from stratagem.environment.detect import detect_environment

__all__ = ["Environment", "detect_environment"]
