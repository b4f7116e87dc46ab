"""`Tuner`: finds a learning rate or the largest batch size, in short fits of a copy of the module."""

from __future__ import annotations

import copy
import gc
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from stratagem_trainer.module.module import Module

from stratagem.errors import ConfigError, StratagemError, WorkerError
from stratagem.sdk.loops import capture_rng, restore_rng
from stratagem_callbacks.rate_sweep import RateSweep, SweepResult

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.trainer import Trainer

_RATES = ("lr", "learning_rate")
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class Tuner:
    """Runs short fits under the trainer's strategy, on all its ranks, and changes one attribute of the module.

    Each fit trains a copy of the module and leaves no files. Batch sizes can't be tried where a launcher such as
    torchrun started several processes: when one rank runs out of memory, the others would wait for it forever.

    Args:
        trainer: its components and settings are used for the fits.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def lr_find(
        self,
        model: Module,
        train_dataloaders: Iterable[Any] | None = None,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> SweepResult:
        """Train with a growing learning rate, and suggest a rate (Smith, 2015).

        Args:
            model: all rates of its optimizers are set to the rate that is tried.
            train_dataloaders: None uses the module's own.
            min_lr: the first rate.
            max_lr: the last rate.
            num_training: number of steps.
            mode: how the rate grows.
            early_stop_threshold: stop when the smoothed loss is this many times the smallest; None never stops early.
            update_attr: set the module's attribute to the suggestion.
            attr_name: the attribute; "lr" or "learning_rate" when empty.

        Returns:
            The rates, the smoothed losses (means over the ranks), and `suggestion()`.

        Raises:
            ConfigError: the module lacks the attribute, or a value isn't allowed.
        """
        attribute = _attribute(model, attr_name, _RATES) if update_attr else ""
        sweep = RateSweep(min_lr, max_lr, num_training, mode, early_stop_threshold)
        # One more, so that the last rate's loss is seen.
        self._fit(model, train_dataloaders, [sweep], max_steps=num_training)
        result = sweep.result()
        found = result.suggestion()
        if attribute and found is not None:
            _set_attribute(model, attribute, found)
        return result

    def scale_batch_size(
        self,
        model: Module,
        train_dataloaders: Iterable[Any] | None = None,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
    ) -> int:
        """Find the largest batch size that fits into memory, and set the module's attribute to it.

        Args:
            model: its `train_dataloader` uses the attribute.
            train_dataloaders: must be None, because a given loader has its batch size already.
            mode: "power" doubles until a fit fails. "binsearch" then searches between the last two sizes.
            steps_per_trial: optimizer steps of each fit.
            init_val: the first batch size.
            max_trials: number of fits, at most.
            batch_arg_name: an attribute of the module, or of its `hparams`.

        Returns:
            The batch size of one rank. A size that holds all samples isn't doubled further.

        Raises:
            ConfigError: the module lacks the attribute, a value isn't allowed, or `init_val` doesn't fit.
        """
        if mode not in ("power", "binsearch"):
            raise ConfigError(f"scale_batch_size got mode={mode!r}; allowed are 'power' and 'binsearch'")
        if train_dataloaders is not None:
            raise ConfigError(
                "scale_batch_size got a loader, whose batch size is fixed: let the module's train_dataloader "
                f"make the loader with self.{batch_arg_name}"
            )
        self._refuse_other_processes()
        attribute = _attribute(model, batch_arg_name, (batch_arg_name,))
        size, best, failed = init_val, 0, None
        for _ in range(max_trials):
            fits = self._fits(model, attribute, size, steps_per_trial)
            best, failed = (size, failed) if fits else (best, size)
            if failed is None:
                count = _samples(model, attribute, size)
                if count is not None and size >= count:
                    break
                size *= 2
            elif mode == "binsearch" and failed - best > 1:
                size = (best + failed) // 2
            else:
                break
        if not best:
            raise ConfigError(f"not even {attribute}={init_val} fits into memory: give a smaller init_val")
        _set_attribute(model, attribute, best)
        return best

    def _fits(self, model: Module, attribute: str, size: int, steps: int) -> bool:
        try:
            self._fit(model, None, [], max_steps=steps, changed={attribute: size})
        except (RuntimeError, MemoryError, StratagemError) as error:
            if not _is_memory(error):
                raise
        else:
            return True
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return False

    def _fit(
        self,
        model: Module,
        loader: Iterable[Any] | None,
        callbacks: list[Callback],
        max_steps: int,
        changed: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, Module):
            raise ConfigError(f"Tuner got a {type(model).__name__}: pass a Module")
        trial = copy.copy(self.trainer)
        trial.callbacks, trial.given_loggers = callbacks, False
        limits: Any = dict.fromkeys(("max_epochs", "max_time", "min_epochs", "min_steps"))
        trial.settings = replace(
            trial.settings,
            **limits,
            max_steps=max_steps,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            val_check_interval=None,
        )
        tried = copy.deepcopy(model)
        for name, value in (changed or {}).items():
            _set_attribute(tried, name, value)
        with _numbers_kept(), tempfile.TemporaryDirectory(prefix="stratagem-tuner-") as folder:
            trial.config = replace(trial.config, run_dir=folder, max_restarts=0)
            trial.fit(tried, loader)

    def _refuse_other_processes(self) -> None:
        from stratagem.sdk.runs import assemble

        run = assemble(self.trainer.config)
        if run.environment.creates_processes and run.environment.world_size > 1:
            raise ConfigError(
                f"scale_batch_size starts runs itself, and a launcher has started {run.environment.world_size} "
                "processes here: find the batch size without the launcher (as with --devices), and set it"
            )


def _attribute(model: Any, given: str, usual: tuple[str, ...]) -> str:
    for name in (given,) if given else usual:
        if hasattr(model, name) or name in (getattr(model, "hparams", None) or {}):
            return name
    raise ConfigError(
        f"{type(model).__name__} has no attribute {' or '.join(map(repr, (given,) if given else usual))} to set: "
        "give it one, which configure_optimizers or train_dataloader uses, or name another"
    )


def _set_attribute(model: Any, name: str, value: Any) -> None:
    hparams = getattr(model, "hparams", None) or {}
    if name in hparams:
        hparams[name] = value
    if name not in hparams or hasattr(model, name):
        setattr(model, name, value)


def _samples(model: Any, attribute: str, size: int) -> int | None:
    tried = copy.deepcopy(model)
    _set_attribute(tried, attribute, size)
    try:
        return len(tried.train_dataloader().dataset)
    except (AttributeError, TypeError):
        return None


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    killed = isinstance(error, WorkerError) and getattr(error, "exit_code", None) in (-9, 137)
    return killed or any(phrase in str(error).lower() for phrase in (*_MEMORY, "memoryerror"))


@contextmanager
def _numbers_kept() -> Iterator[None]:
    device = torch.device("cpu")
    states = capture_rng(device)
    try:
        yield
    finally:
        restore_rng(states, device)


__all__ = ["SweepResult", "Tuner"]
