"""Captures and restores the random number generators of a process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and the device's generators, ready for a checkpoint.

    If torch has no module for a kind of device, the strategy has to save that device's generator.
    """
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [str(name), np.asarray(keys), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu" and hasattr(torch, device.type):
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore_rng(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states that `capture_rng` returned. The device's generator is restored only if it was captured."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.asarray(keys), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type != "cpu" and "device" in states and hasattr(torch, device.type):
        torch.get_device_module(device).set_rng_state(states["device"], device)


@contextmanager
def forked_rng(device: torch.device) -> Iterator[None]:
    """Restore torch's generators for the CPU and for `device` at the end."""
    if device.type == "cpu":
        borrowed = torch.random.fork_rng([])
    else:
        borrowed = torch.random.fork_rng([device], device_type=device.type)
    with borrowed:
        yield
