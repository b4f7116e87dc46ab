"""`seed_everything` and `isolate_rng`: the random number generators of this process and of its workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from stratagem import Runtime

_MOST = 2**32 - 1
_latest: int | None = None


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed the generators of Python, NumPy and torch on every device of this process. Not collective.

    A trainer without a `seed` also seeds its worker processes with this seed. Ranks that read different batches then
    draw different numbers.

    Args:
        seed: from 0 to 2³²-1. None is the last seed that was given, or else 0.
        workers: accepted for compatibility. Loaders' workers are always seeded, by torch, from the generator of the
            process that has the loader.
        verbose: whether to log the seed.

    Returns:
        The seed.

    Raises:
        ConfigError: the seed is not a whole number in this range.
    """
    from stratagem.sdk.loops import seed_everything as seed_generators

    global _latest
    chosen = seed if seed is not None else (_latest or 0)
    if not isinstance(chosen, int) or isinstance(chosen, bool) or not 0 <= chosen <= _MOST:
        raise ConfigError(f"seed={seed!r} must be a whole number from 0 to {_MOST}")
    _latest = chosen
    if verbose:
        logging.getLogger("stratagem").info("seed %d", chosen)
    seed_generators(chosen)
    return chosen


def latest_seed() -> int | None:
    """Return the last seed that this process was given; None if there was none."""
    return _latest


def worker_seed(runtime: Runtime, latest: int | None) -> int | None:
    """Return the seed for a rank's generators, or None.

    It is the run's seed, or else, in a worker process, the last seed of the launching process.
    """
    if runtime.config.seed is not None or runtime.in_launching_process:
        return runtime.config.seed
    return latest


@contextmanager
def random_numbers_kept(device: torch.device, only_after_error: bool = False) -> Iterator[None]:
    """Restore the generators' states at the end, so that training draws the same numbers as without the context.

    Args:
        device: the rank's device.
        only_after_error: restore them only if the context is left by an error.
    """
    from stratagem.sdk.loops import capture_rng, restore_rng

    states = capture_rng(device)
    try:
        yield
    except BaseException:
        restore_rng(states, device)
        raise
    if not only_after_error:
        restore_rng(states, device)


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Restore the states of the generators of Python, NumPy, torch and CUDA at the end. A context manager.

    Args:
        include_cuda: whether to restore the generators of all CUDA devices, too.
    """
    import torch

    from stratagem.sdk.loops import capture_rng, restore_rng

    cpu = torch.device("cpu")
    states = capture_rng(cpu)
    on_cuda = torch.cuda.get_rng_state_all() if include_cuda and torch.cuda.is_available() else None
    try:
        yield
    finally:
        restore_rng(states, cpu)
        if on_cuda is not None:
            torch.cuda.set_rng_state_all(on_cuda)
