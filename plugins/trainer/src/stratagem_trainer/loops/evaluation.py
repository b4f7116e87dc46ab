"""Validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem.sdk.loops import forked_rng
from stratagem.sdk.tensors import map_tensors
from stratagem_trainer.live import STEPS, Live
from stratagem_trainer.settings import limited

if TYPE_CHECKING:
    from stratagem.sdk.loops import EvalData
    from stratagem_trainer.trainer import Trainer

EPOCH_ENDS = {"validate": "on_validation_epoch_end", "test": "on_test_epoch_end"}


def evaluate(trainer: Trainer, live: Live, data: EvalData, stage: str) -> dict[str, float]:
    """Run all batches of "validate" or "test" and return the reduced metrics. Collective."""
    metrics, progress = live.metrics, live.progress
    with metrics.evaluation(stage) as scope, evaluating(live.module):
        live.moments("on_evaluation_start", trainer, live.module, stage)
        with live.prepared.evaluating():
            for _ in _outputs(trainer, live, data, stage):
                scope.end_evaluation_step()
            metrics.batch = None
            getattr(live.module, EPOCH_ENDS[stage])()
        values = metrics.end_evaluation(scope, progress.step, progress.epoch)
        # A checkpoint that a callback writes from here on knows that this validation is done.
        progress.validated = progress.batch
        live.moments("on_evaluation_end", trainer, live.module, stage)
    return values


def predict(trainer: Trainer, live: Live, data: EvalData) -> list[Any]:
    """Return predictions of all ranks in the order of the data, on the CPU. Collective."""
    with live.metrics.evaluation("predict"), evaluating(live.module):
        live.moments("on_evaluation_start", trainer, live.module, "predict")
        with live.prepared.evaluating():
            outputs = [
                map_tensors(lambda tensor: tensor.detach().cpu(), output)
                for output in _outputs(trainer, live, data, "predict")
            ]
        live.moments("on_evaluation_end", trainer, live.module, "predict")
    return data.merge(live.runtime.collectives.data.gather_objects(outputs))


def num_batches(live: Live, data: EvalData, stage: str) -> int | None:
    """How many batches an evaluation runs on this rank."""
    return limited(data.num_batches, live.settings.limit(stage))


def _outputs(trainer: Trainer, live: Live, data: EvalData, stage: str) -> Iterator[Any]:
    """Run the steps; yield the output of each batch that counts."""
    step, metrics, ends = STEPS[stage], live.metrics, live.moments.of("on_evaluation_batch_end")
    with forked_rng(live.runtime.device):  # a DataLoader draws a seed when it is begun: not of the training's
        iterator = iter(live.prepared.dataloader(data))
    batches = islice(iterator, num_batches(live, data, stage))
    for idx, (batch, counts) in enumerate(batches):
        metrics.batch, metrics.muted = batch, not counts
        try:
            output = live.prepared.evaluate(step, batch, idx)
        finally:
            metrics.muted = False
        for end in ends:
            end(trainer, live.module, output, batch, idx, stage)
        if counts:
            yield output


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each submodule is in the mode it was in."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training
