"""Training for `tests.corpus.clean` that isn't right: another learning rate, and a rank that fails."""

from __future__ import annotations

from dataclasses import replace

import stratagem
from tests.corpus.clean import train_by_runtime
from tests.corpus.clean_models import CleanModel


def train_faster(runtime: stratagem.Runtime, model: CleanModel, folder: str) -> None:
    options = {**model.options, "lr": 1.01 * model.options["lr"]}
    train_by_runtime(runtime, replace(model, options=options), folder)


def fail_in_one_rank(runtime: stratagem.Runtime, model: CleanModel, folder: str) -> None:
    if model.name == "Tied" and runtime.data_rank == 1:
        raise ValueError("a failure of one rank")
    train_by_runtime(runtime, model, folder)
