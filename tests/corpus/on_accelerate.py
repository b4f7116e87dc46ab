"""Bugs of programs on accelerate and the Trainer of transformers. They need `make corpus`'s folder of libraries."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW
from transformers import Trainer, TrainingArguments
from transformers.utils import ModelOutput

from tests.corpus.bug import ROWS, Bug, Case, Net, batches, make_net

MICRO_BATCHES = 2


def _accelerated(case: Case, *, accumulate: int = 1) -> tuple[Accelerator, nn.Module, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    net = make_net()
    model, optimizer = accelerator.prepare(net, AdamW(net.parameters()))
    return accelerator, model, optimizer


def divided_by_us_and_by_accelerate(case: Case) -> None:
    """The loop divides the loss by the number of micro-batches, and `accelerator.backward` does, too."""
    accelerator, model, optimizer = _accelerated(case, accumulate=MICRO_BATCHES)
    with case.record(model, optimizer):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                with accelerator.accumulate(model):
                    loss = mse_loss(model(case.own(part)), case.own(part_targets))
                    accelerator.backward(loss / MICRO_BATCHES if case.is_wrong else loss)
                    optimizer.step()
                    optimizer.zero_grad()


def cleared_at_the_beginning(case: Case) -> None:
    """`zero_grad` comes first in each micro-batch, and clears what was accumulated when it is the last one."""
    accelerator, model, optimizer = _accelerated(case, accumulate=MICRO_BATCHES)
    with case.record(model, optimizer):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                with accelerator.accumulate(model):
                    if case.is_wrong:
                        optimizer.zero_grad()
                    accelerator.backward(mse_loss(model(case.own(part)), case.own(part_targets)))
                    optimizer.step()
                    if not case.is_wrong:
                        optimizer.zero_grad()


def schedule_of_all_processes(case: Case) -> None:
    """A schedule that counts optimizer steps is prepared, and makes a step for each process."""
    accelerator = Accelerator(cpu=True)
    net = make_net()
    optimizer = SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    model, prepared = accelerator.prepare(net, optimizer)
    if case.is_wrong:
        schedule = accelerator.prepare(schedule)
    with case.record(model, prepared):
        for rows, targets in batches():
            accelerator.backward(mse_loss(model(case.own(rows)), case.own(targets)))
            prepared.step()
            schedule.step()
            prepared.zero_grad()


class Masked(Net):
    """A model with its own loss over valid rows, as those of transformers have."""

    accepts_loss_kwargs = False

    def forward(self, rows: Tensor, targets: Tensor, valid: Tensor, **kwargs: Any) -> ModelOutput:  # type: ignore[override]  # with a loss
        errors = (super().forward(rows) - targets).square().sum(1) * valid
        count = kwargs.get("num_items_in_batch")
        return ModelOutput(loss=errors.sum() / (valid.sum() if count is None else count))


class Counted(Masked):
    """The same, which takes the number of valid rows of all micro-batches."""

    accepts_loss_kwargs = True


class Careless(Masked):
    """The same, which takes the number and doesn't use it."""

    accepts_loss_kwargs = True

    def forward(self, rows: Tensor, targets: Tensor, valid: Tensor, **kwargs: Any) -> ModelOutput:
        return super().forward(rows, targets, valid)


class Counting(Trainer):
    """A Trainer that counts valid rows: those of transformers count labels that aren't -100."""

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor:
        count = sum(batch["valid"].sum() for batch in batch_samples)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count.reshape(1)).sum()
        return count


def _examples(steps: int) -> list[dict[str, Tensor]]:
    found = []
    for rows, targets in batches(steps):
        valid = torch.tensor([1.0, 0, 1, 0, 1, 1, 1, 0])
        found += [
            {"rows": row, "targets": target, "valid": one} for row, target, one in zip(rows, targets, valid)
        ]
    return found


def _train(case: Case, net: nn.Module, *, accumulate: int, across: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=3,
            per_device_train_batch_size=ROWS // (accumulate * case.world_size),
            gradient_accumulation_steps=accumulate,
            average_tokens_across_devices=across,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )
        examples = _examples(3)
        trainer = _InOrder(net, arguments, train_dataset=examples)  # type: ignore[arg-type]  # a list has a length
        with case.record(net, None):
            trainer.train()


class _InOrder(Counting):
    """Reads examples in their order."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]  # it is given


def trainer_averages_micro_batches(case: Case) -> None:
    """The Trainer averages means of micro-batches, as the model doesn't take the number of all labels."""
    kind = Masked if case.is_wrong else Counted
    _train(case, make_net(kind), accumulate=1 if case.is_reference else MICRO_BATCHES, across=True)


def number_of_labels_ignored(case: Case) -> None:
    """The Trainer leaves it to the model to divide by all labels, and the model divides by those of a micro-batch."""
    kind = Careless if case.is_wrong else Counted
    _train(case, make_net(kind), accumulate=1 if case.is_reference else MICRO_BATCHES, across=True)


def trainer_averages_ranks(case: Case) -> None:
    """The Trainer divides by the labels of its own rank."""
    _train(case, make_net(Counted), accumulate=1, across=not case.is_wrong)


GITHUB = "https://github.com/huggingface"
# A model of transformers computes its loss itself: what the Trainer counts is seen in the model's own value first.

BUGS = (
    Bug(
        divided_by_us_and_by_accelerate,
        "scaling",
        "accelerate",
        f"{GITHUB}/accelerate/issues/3533",
        "parameter gradient *",
    ),
    Bug(
        cleared_at_the_beginning,
        "accumulation",
        "accelerate",
        f"{GITHUB}/accelerate/issues/1299",
        "parameter gradient *",
    ),
    Bug(
        schedule_of_all_processes,
        "optimizer state",
        "accelerate",
        f"{GITHUB}/transformers/pull/24088",
        "parameter *",
    ),
    Bug(
        trainer_averages_micro_batches,
        "accumulation",
        "transformers' Trainer",
        f"{GITHUB}/transformers/issues/24725",
        "output ",
        world_size=1,
    ),
    Bug(
        number_of_labels_ignored,
        "accumulation",
        "transformers' Trainer",
        f"{GITHUB}/transformers/issues/47688",
        "output ",
        world_size=1,
    ),
    Bug(
        trainer_averages_ranks,
        "scaling",
        "transformers' Trainer",
        f"{GITHUB}/transformers/pull/34373",
        "output ",
    ),
)
"""In the order of docs/corpus.md."""
