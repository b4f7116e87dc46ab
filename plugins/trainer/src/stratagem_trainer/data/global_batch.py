"""`global_batch_size`: keep the global batch size on any number of ranks, by accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.data.training import AnyTrainData
    from stratagem_trainer.settings import TrainerSettings


def micro_batches(settings: TrainerSettings, data: AnyTrainData, ranks: int) -> int:
    """Return the number of micro-batches per rank for an optimizer step.

    Args:
        settings: the trainer's settings.
        data: the training data.
        ranks: number of ranks that read different data.

    Raises:
        ConfigError: `global_batch_size` isn't a multiple of the batch size times the ranks. Says what would fit.
    """
    whole, size = settings.global_batch_size, data.batch_size
    if whole is None:
        return settings.accumulate_grad_batches
    if size is None:
        raise ConfigError(
            f"global_batch_size={whole} needs to know how many samples a batch has, and this loader has no "
            "batch_size: pass a DataLoader with one, or set accumulate_grad_batches instead"
        )
    count, rest = divmod(whole, size * ranks)
    if rest or not count:
        raise ConfigError(
            f"global_batch_size={whole} is not a multiple of {size * ranks}, which is batch_size={size} on each of "
            f"{ranks} ranks: {_what_fits(whole, size, ranks)}"
        )
    return count


def last_share(settings: TrainerSettings, data: AnyTrainData) -> float:
    """Return the size of an epoch's last micro-batch, relative to that of the others.

    It weighs that micro-batch only if `global_batch_size` is set. Otherwise all micro-batches of a step weigh the
    same.
    """
    if settings.global_batch_size is None or not data.batch_size or not data.last_batch_size:
        return 1.0
    return data.last_batch_size / data.batch_size


def whole_steps(count: int | None, micro_batches: int, loader: Any) -> int | None:
    """Return how many of an epoch's `count` batches are trained on if `global_batch_size` is set.

    If the loader drops its last, incomplete batch, an incomplete last global batch is dropped, too. An epoch then has
    the same number of samples on any number of ranks.
    """
    if count is None or not getattr(loader, "drop_last", False):
        return count
    return count - count % micro_batches


def _what_fits(whole: int, size: int, ranks: int) -> str:
    fitting = [f"global_batch_size={whole - whole % (size * ranks) or size * ranks}"]
    if whole % ranks == 0:
        sizes = [each for each in range(whole // ranks, 0, -1) if whole // ranks % each == 0]
        fitting.append(f"batch_size={min(sizes, key=lambda each: abs(each - size))}")
    if whole % size == 0:
        counts = [each for each in range(1, whole // size + 1) if whole // size % each == 0]
        listed = [str(each) for each in counts if each <= max(4 * ranks, 8)]
        fitting.append(f"{' or '.join([', '.join(listed[:-1]), listed[-1]] if listed[1:] else listed)} ranks")
    return f"{', or '.join(fitting)} would fit"
