"""The gradients of one step of transformers' Trainer."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Gradients(TrainerCallback):
    """Keeps the gradients of the last step."""

    values: torch.Tensor

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        self.values = gradients_of(model)


def gradients_of(model: nn.Module) -> torch.Tensor:
    """Return the gradients of all parameters, in float64, one after the other."""
    return torch.cat([each.grad.flatten().double() for each in model.parameters() if each.grad is not None])


def gradients_of_trainer(
    model: nn.Module, rows: torch.Tensor, micro_batches: int = 1, **options: Any
) -> torch.Tensor:
    """Return the gradients of one step over sentences.

    Args:
        model: a causal language model of transformers.
        rows: sentences of one length, (sentences, tokens); in the Trainer's random order.
        micro_batches: in how many the step reads them.
        options: further ones of TrainingArguments.
    """
    kept = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=len(rows) // micro_batches,
            gradient_accumulation_steps=micro_batches,
            max_steps=1,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **options,
        )
        samples = [{"input_ids": row, "labels": row} for row in rows]
        Trainer(model, arguments, train_dataset=samples, callbacks=[kept]).train()
    return kept.values
