"""`seed_everything` and `isolate_rng`: random numbers of this process, and of the workers that it starts."""

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
    """Seed Python's, NumPy's and torch's generators, on every device of this process; not collective.

    A trainer without a `seed` whose workers are processes of their own seeds them with it, too: ranks that read
    different batches then draw different numbers.

    Args:
        seed: from 0 to 2³²-1; the last one that was given where it is None, or 0.
        workers: loaders' workers are always seeded, by torch, from the generator of the process that has the loader.
        verbose: log it.

    Returns:
        The seed.

    Raises:
        ConfigError: it isn't such a number.
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
    """The last seed that this process was given; None where there was none."""
    return _latest


def worker_seed(runtime: Runtime, latest: int | None) -> int | None:
    """The seed of a rank's generators: the run's, or, in its own process, that of the one that started it."""
    if runtime.config.seed is not None or runtime.in_launching_process:
        return runtime.config.seed
    return latest


@contextmanager
def random_numbers_kept(device: torch.device, only_after_error: bool = False) -> Iterator[None]:
    """A context after which training goes on with the numbers that it would have drawn without it.

    Args:
        device: of the rank.
        only_after_error: whether numbers that are drawn within are used up, unless it ends by an error.
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
    """A context after which all generators are as they were before: Python's, NumPy's, torch's, and those of CUDA.

    Args:
        include_cuda: whether those of all CUDA devices are, too.
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
