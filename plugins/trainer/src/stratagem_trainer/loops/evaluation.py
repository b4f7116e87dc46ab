"""Validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem.sdk.loops import capture_rng, restore_rng
from stratagem.sdk.tensors import map_tensors
from stratagem_trainer.loops.predictions import in_order
from stratagem_trainer.settings import limited
from stratagem_trainer.state import STEPS, StageState

if TYPE_CHECKING:
    from stratagem.sdk.loops import EvalData
    from stratagem_trainer.scope import Scope

HOOKS = {"validate": "validation", "test": "test", "predict": "predict"}
"""Stage → how its hooks are called."""


def evaluate(state: StageState, data: EvalData, stage: str) -> dict[str, float]:
    """Run all batches of "validate" or "test" and return the reduced metrics. Collective."""
    metrics, progress, hooks = state.metrics, state.progress, state.hooks
    with metrics.evaluation(stage) as scope, evaluating(state.module, state.settings.inference_mode):
        hooks("on_evaluation_start", stage)
        _start(state, stage)
        with random_numbers_kept(state.runtime.device):
            _run(state, data, stage, scope)
        values = metrics.end_evaluation(scope, progress.step, progress.epoch)
        # A checkpoint that a callback writes from here on knows that this validation is done.
        progress.validated = progress.batch
        hooks(f"on_{HOOKS[stage]}_end")
        hooks("on_evaluation_end", stage)
    return values


def sanity_check(state: StageState, data: EvalData) -> None:
    """Try `num_sanity_val_steps` batches of the validation, and keep nothing of it. Collective.

    What is logged is dropped, random numbers go on from where they were, and callbacks hear of it by the hooks of
    a validation, but not by `on_evaluation_*`, on which those act that judge a run by its metrics.
    """
    steps, hooks = state.settings.num_sanity_val_steps, state.hooks
    if steps == 0:
        return
    state.is_sanity_checking = True
    hooks("on_sanity_check_start")
    with (
        random_numbers_kept(state.runtime.device),
        state.metrics.evaluation("validate") as scope,
        evaluating(state.module, state.settings.inference_mode),
    ):
        _start(state, "validate")
        _run(state, data, "validate", scope, most=None if steps == -1 else steps)
        hooks("on_validation_end")
    hooks("on_sanity_check_end")
    state.is_sanity_checking = False


def _run(state: StageState, data: EvalData, stage: str, scope: Scope, most: int | None = None) -> None:
    """Run the batches, at most so many, and end the epoch of the evaluation."""
    with state.prepared.evaluating():
        for _ in _outputs(state, data, stage, most):
            scope.end_evaluation_step()
        state.metrics.batch = None
        state.hooks(f"on_{HOOKS[stage]}_epoch_end")


def predict(state: StageState, data: EvalData) -> list[Any]:
    """Return predictions of all ranks in the order of the data, on the CPU. Collective."""
    with state.metrics.evaluation("predict"), evaluating(state.module, state.settings.inference_mode):
        state.hooks("on_evaluation_start", "predict")
        _start(state, "predict")
        with state.prepared.evaluating():
            outputs = [
                map_tensors(lambda tensor: tensor.detach().cpu(), output)
                for output in _outputs(state, data, "predict")
            ]
            state.hooks("on_predict_epoch_end")
        state.hooks("on_predict_end")
        state.hooks("on_evaluation_end", "predict")
    ranks = state.runtime.collectives
    return in_order(data, ranks.data.gather_objects(outputs), warns=ranks.node_rank == ranks.local_rank == 0)


def _start(state: StageState, stage: str) -> None:
    state.hooks(f"on_{HOOKS[stage]}_start")
    state.hooks(f"on_{HOOKS[stage]}_epoch_start")


def num_batches(state: StageState, data: EvalData, stage: str) -> int | None:
    """How many batches an evaluation runs on this rank."""
    return limited(data.num_batches, state.settings.limit(stage))


def _outputs(state: StageState, data: EvalData, stage: str, most: int | None = None) -> Iterator[Any]:
    """Run the steps; yield the output of each batch that counts."""
    step, metrics, hooks = STEPS[stage], state.metrics, state.hooks
    starts = hooks.of(f"on_{HOOKS[stage]}_batch_start")
    ends = hooks.of(f"on_{HOOKS[stage]}_batch_end")
    ends_of_any = [] if state.is_sanity_checking else hooks.of("on_evaluation_batch_end")
    limit = num_batches(state, data, stage)
    if most is not None:
        limit = most if limit is None else min(limit, most)
    batches = islice(iter(state.prepared.dataloader(data)), limit)
    for idx, (batch, counts) in enumerate(batches):
        metrics.batch, metrics.muted = batch, not counts
        try:
            for start in starts:
                start(batch, idx)
            output = state.prepared.evaluate(step, batch, idx)
            for end in ends:
                end(output, batch, idx)
        finally:
            metrics.muted = False
        for end in ends_of_any:
            end(output, batch, idx, stage)
        if counts:
            yield output


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn meanwhile, as by a loader's iterator, training goes on with the numbers it would have."""
    states = capture_rng(device)
    try:
        yield
    finally:
        restore_rng(states, device)


@contextmanager
def evaluating(module: nn.Module, inference_mode: bool = False) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each submodule is in the mode it was in."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        with torch.inference_mode() if inference_mode else torch.no_grad():
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training
