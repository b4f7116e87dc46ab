"""Starts the processes of a run: the protocol, and a launcher that starts none."""

from __future__ import annotations

from stratagem.launchers.base import Launcher, LaunchPlan, Task

__all__ = ["LaunchPlan", "Launcher", "Task"]
