"""Validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem.errors import ConfigError, DataError
from stratagem.sdk.tensors import map_tensors
from stratagem_trainer.data.transfer import on_device
from stratagem_trainer.loops.boundary import StopNow
from stratagem_trainer.loops.loader_index import takes_loader_index, with_loader_index
from stratagem_trainer.loops.predictions import in_order
from stratagem_trainer.metrics.metric_objects import states_kept
from stratagem_trainer.metrics.preview import show_so_far
from stratagem_trainer.settings import LIMITS, limited
from stratagem_trainer.stage.seeding import random_numbers_kept
from stratagem_trainer.stage.state import STEPS, StageState

if TYPE_CHECKING:
    from stratagem_trainer.data.evaluation import EvalLoader
    from stratagem_trainer.metrics.scope import Scope

HOOKS = {"validate": "validation", "test": "test", "predict": "predict"}
"""Stage → the part of its hooks' names, as in `on_validation_start`."""


def evaluate(state: StageState, loaders: Sequence[EvalLoader], stage: str) -> list[dict[str, float]]:
    """Run all batches of "validate" or "test" and return the reduced metrics, one dict per loader. Collective."""
    metrics, progress, hooks = state.metrics, state.progress, state.hooks
    with metrics.evaluation(stage) as scope, evaluating(state, stage):
        hooks("on_evaluation_start", stage)
        _start(state, stage)
        # An interrupted validation is run again from its start: restore the generators then.
        kept = state.settings.policy.evaluation_random_numbers(state.runtime.device)
        with kept, states_kept(state.module, only_after_error=True):
            scopes = _run(state, loaders, stage, scope)
        values = metrics.end_evaluation(scope, progress.step, progress.epoch, scopes)
        # Checkpoints that callbacks write from here on record that this validation is done.
        progress.validated = progress.batch
        hooks(f"on_{HOOKS[stage]}_end")
        hooks("on_evaluation_end", stage)
    return values


def sanity_check(state: StageState, loaders: Sequence[EvalLoader]) -> None:
    """Run `num_sanity_val_steps` batches of each validation loader, and discard the results. Collective.

    Logged values are dropped; generators and metric objects are restored. Callbacks get the validation hooks, but not
    `on_evaluation_*`, by which callbacks judge a run from its metrics.
    """
    steps, hooks = state.settings.sanity_steps, state.hooks
    if steps == 0:
        return
    state.is_sanity_checking = True
    hooks("on_sanity_check_start")
    with (
        random_numbers_kept(state.runtime.device),
        state.metrics.kept(),
        state.metrics.evaluation("validate") as scope,
        evaluating(state, "sanity_check"),
    ):
        _start(state, "validate")
        _run(state, loaders, "validate", scope, most=None if steps == -1 else steps)
        hooks("on_validation_end")
    hooks("on_sanity_check_end")
    state.is_sanity_checking = False


def _run(
    state: StageState, loaders: Sequence[EvalLoader], stage: str, scope: Scope, most: int | None = None
) -> list[Scope]:
    """Run the batches, up to a limit per loader, and call the hooks at the end of the evaluation's epoch.

    Returns:
        The logged values of each of several loaders; empty for a single loader.
    """
    scopes: list[Scope] = []
    several = len(loaders) > 1
    with state.prepared.evaluating():
        for index, data in enumerate(loaders):
            with state.metrics.evaluation(stage, index) if several else nullcontext(scope) as its_scope:
                for _ in _outputs(state, data, stage, index if several else None, most):
                    its_scope.end_evaluation_step()
            if several:
                scopes.append(its_scope)
        state.metrics.batch = None
        scope.had_batches |= several
        ends = state.hooks.of(f"on_{HOOKS[stage]}_epoch_end")
        if ends:
            show_so_far(state, scope, scopes)
        for end in ends:
            end()
    return scopes


def predict(
    state: StageState, loaders: Sequence[EvalLoader], is_returned: bool
) -> list[Any] | list[list[Any]]:
    """Return the predictions of all ranks in the order of the data, on the CPU; one list per loader if several.

    Collective. If the prediction must stop, the hooks at the epoch's end run for the batches so far, and the error
    has their predictions.

    Args:
        state: the stage's objects.
        loaders: the loaders to predict.
        is_returned: False drops predictions, if callbacks write them.

    Raises:
        StopNow: the prediction was stopped. It has the predictions so far.
    """
    several = len(loaders) > 1
    parts: list[list[Any]] = []
    stopped: StopNow | None = None
    with state.metrics.evaluation("predict"), evaluating(state, "predict"):
        state.hooks("on_evaluation_start", "predict")
        _start(state, "predict")
        with state.prepared.evaluating():
            try:
                for index, data in enumerate(loaders):
                    parts.append([])
                    for output in _outputs(state, data, "predict", index if several else None):
                        if is_returned:
                            parts[-1].append(_on_cpu(output))
            except StopNow as stop:
                stopped = stop
            state.hooks("on_predict_epoch_end")
        if stopped is None:
            state.hooks("on_predict_end")
            state.hooks("on_evaluation_end", "predict")
    if not is_returned:
        if stopped is not None:
            raise stopped
        return []
    ranks = state.runtime.collectives
    merged = [
        in_order(data, ranks.data.gather_objects(part), warns=ranks.rank == 0)
        for data, part in zip(loaders, parts)
    ]
    if stopped is not None:
        stopped.predictions = merged
        raise stopped
    return merged if several else merged[0]


def _on_cpu(output: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().cpu(), output)


def _start(state: StageState, stage: str) -> None:
    state.hooks(f"on_{HOOKS[stage]}_start")
    state.hooks(f"on_{HOOKS[stage]}_epoch_start")


def num_batches(state: StageState, data: EvalLoader, stage: str) -> int | None:
    """Return how many batches of a loader an evaluation runs on this rank; None if unknown."""
    limit, count = state.settings.limit(stage), data.num_batches
    left = limited(count, limit)
    if left == 0 and count and limit:
        raise ConfigError(
            f"a limit of {limit} leaves none of the {count} batches of a loader: raise {LIMITS[stage]}, or "
            "overfit_batches, or give 0 to run none"
        )
    return left


def total_batches(state: StageState, loaders: Sequence[EvalLoader], stage: str) -> int | None:
    """Return how many batches of all loaders an evaluation runs on this rank; None if unknown."""
    numbers = [num_batches(state, data, stage) for data in loaders]
    known = [number for number in numbers if number is not None]
    return None if None in numbers else sum(known)


def _outputs(
    state: StageState, data: EvalLoader, stage: str, loader: int | None, most: int | None = None
) -> Iterator[Any]:
    """Run the steps; yield the output of each batch that counts.

    Args:
        state: the stage's objects.
        data: one loader.
        stage: "validate", "test" or "predict".
        loader: its index, where the evaluation has several.
        most: the maximum number of batches.
    """
    step, metrics, hooks = STEPS[stage], state.metrics, state.hooks
    state.settings.policy.begin_evaluation(data, state.progress.epoch if state.stage == "fit" else 0)
    index = _index_arguments(state, step, loader)
    starts = [with_loader_index(hook, loader) for hook in hooks.of(f"on_{HOOKS[stage]}_batch_start")]
    ends = [with_loader_index(hook, loader) for hook in hooks.of(f"on_{HOOKS[stage]}_batch_end")]
    ends_of_any = [] if state.is_sanity_checking else hooks.of("on_evaluation_batch_end")
    limit = num_batches(state, data, stage)
    if most is not None:
        limit = most if limit is None else min(limit, most)
    batches = islice(iter(on_device(state, data, loader or 0, counted=True)), limit)
    pass_batch = (
        None if state.boundary is None else state.boundary.of_evaluation(limit, not state.is_sanity_checking)
    )
    for idx, (batch, counts) in enumerate(batches):
        if pass_batch is not None:
            pass_batch(idx)
        metrics.batch = batch
        state.eval_data, state.batch_counts = data, counts
        with nullcontext() if counts else metrics.discarded():
            for start in starts:
                start(batch, idx)
            output = state.prepared.evaluate(step, batch, idx, *index)
            for end in ends:
                end(output, batch, idx)
        for end in ends_of_any:
            end(output, batch, idx, stage)
        if counts:
            yield output


def _index_arguments(state: StageState, step: str, loader: int | None) -> tuple[int, ...]:
    """Return the arguments of a step after the batch and its index.

    Raises:
        DataError: there are several loaders, but the step doesn't take `dataloader_idx`.
    """
    method = getattr(state.module, step)
    if loader is None:
        return (0,) if takes_loader_index(method) == "always" else ()
    if takes_loader_index(method):
        return (loader,)
    kind = type(state.module).__qualname__
    raise DataError(
        f"{kind}.{step} is called with the batches of several loaders and doesn't take which: define it as "
        f"{step}(self, batch, batch_idx, dataloader_idx=0)"
    )


@contextmanager
def evaluating(state: StageState, stage: str) -> Iterator[None]:
    """Run in evaluation mode without gradients, and restore each submodule's mode afterwards. A context manager."""
    module: nn.Module = state.module
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    before, state.running = state.running, stage
    module.eval()
    try:
        has_inference_mode = state.settings.inference_mode and state.prepared.supports_inference_mode
        with torch.inference_mode() if has_inference_mode else torch.no_grad():
            yield
    finally:
        state.running = before
        for submodule, training in modes:
            submodule.training = training
