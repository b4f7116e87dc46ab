"""Random number generators that a loader draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stratagem.data.rng import capture_rng, restore_rng
from stratagem.data.sharing import parts_of, reads_by_sampler

_CPU = torch.device("cpu")


def capture_own(loader: Any) -> dict[str, Any]:
    """Return the states of the generators kept in the loader and its samplers, ready for a checkpoint."""
    states: dict[str, Any] = {}
    for name, generator in _own(loader):
        if isinstance(generator, torch.Generator):
            states[name] = generator.get_state()
        elif isinstance(generator, random.Random):
            states[name] = generator.getstate()
        else:
            states[name] = dict(generator.bit_generator.state)
    return states


def restore_own(loader: Any, states: Mapping[str, Any]) -> None:
    """Restore what `capture_own` returned, as far as the loader still has these generators."""
    for name, generator in _own(loader):
        if name not in states:
            continue
        if isinstance(generator, torch.Generator):
            generator.set_state(states[name])
        elif isinstance(generator, random.Random):
            version, internal, gauss = states[name]
            generator.setstate((version, tuple(internal), gauss))
        else:
            generator.bit_generator.state = states[name]


def capture_global() -> dict[str, Any]:
    """Return the states of this process's generators on the CPU, ready for a checkpoint."""
    return capture_rng(_CPU)


def restore_global(states: dict[str, Any]) -> None:
    """Restore what `capture_global` returned."""
    restore_rng(states, _CPU)


@contextmanager
def global_kept(keep: bool = True) -> Iterator[None]:
    """Restore the states of this process's generators at the end, if `keep`."""
    if not keep:
        yield
        return
    states = capture_global()
    try:
        yield
    finally:
        restore_global(states)


def _own(loader: Any) -> Iterator[tuple[str, Any]]:
    for part, owner in parts_of(loader).items():
        # A map-style dataset is not read again when batches are skipped.
        if part == "dataset" and reads_by_sampler(loader):
            continue
        for attribute, value in getattr(owner, "__dict__", {}).items():
            if isinstance(value, (torch.Generator, random.Random, np.random.Generator)) and not (
                isinstance(value, torch.Generator) and value.device.type != "cpu"
            ):
                yield f"{part}.{attribute}", value
