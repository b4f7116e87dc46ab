"""A global batch that stays the same on any number of ranks, by accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.data.training import AnyTrainData
    from stratagem_trainer.settings import TrainerSettings


def micro_batches(settings: TrainerSettings, data: AnyTrainData, ranks: int) -> int:
    """Return how many micro-batches of each rank make an optimizer step.

    Args:
        settings: the trainer's.
        data: of the training.
        ranks: that read different data.

    Raises:
        ConfigError: `global_batch_size` isn't a whole number of all ranks' micro-batches; says what would fit.
    """
    whole, size = settings.global_batch_size, data.batch_size
    if whole is None:
        return settings.accumulate_grad_batches
    if size is None:
        raise ConfigError(
            f"global_batch_size={whole} needs to know how many samples a batch has, and this loader has no "
            "batch_size: give a DataLoader with one, or accumulate_grad_batches instead"
        )
    count, rest = divmod(whole, size * ranks)
    if rest or not count:
        raise ConfigError(
            f"global_batch_size={whole} is no multiple of {size * ranks}, which is batch_size={size} on each of "
            f"{ranks} ranks: {_what_fits(whole, size, ranks)}"
        )
    return count


def last_share(settings: TrainerSettings, data: AnyTrainData) -> float:
    """Return how many samples an epoch's last micro-batch has, of those that the others have.

    Only where the global batch is given are micro-batches weighed by it: otherwise each counts alike in its step.
    """
    if settings.global_batch_size is None or not data.batch_size or not data.last_batch_size:
        return 1.0
    return data.last_batch_size / data.batch_size


def whole_steps(count: int | None, micro_batches: int, loader: Any) -> int | None:
    """Return how many of an epoch's `count` batches are trained on where the global batch is given.

    A loader that drops its last, incomplete batch drops the last, incomplete global batch: as many samples on any
    number of ranks.
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
