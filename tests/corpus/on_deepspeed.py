"""Bugs of programs on DeepSpeed's engine."""

from __future__ import annotations

from typing import Any

import deepspeed
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW

from tests.corpus.bug import Bug, Case, batches, make_net

MICRO_BATCHES = 2


def _engine(case: Case, accumulate: int, stage: int = 0) -> tuple[nn.Module, Any]:
    net = make_net()
    config = {
        "train_micro_batch_size_per_gpu": 8 // (accumulate * case.world_size),
        "gradient_accumulation_steps": accumulate,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # 1.0 where nothing is said
    }
    made = deepspeed.initialize(model=net, optimizer=AdamW(net.parameters()), config=config)
    return net, made[0]


def divided_by_us_and_by_deepspeed(case: Case) -> None:
    """The loop divides the loss by the number of micro-batches, and the engine does, too."""
    net = make_net()
    engine = None
    if case.is_reference:
        optimizer = AdamW(net.parameters())
    else:
        net, engine = _engine(case, MICRO_BATCHES, stage=2)
    with case.record(net, None):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                if engine is None:
                    (mse_loss(net(part), part_targets) / MICRO_BATCHES).backward()
                    continue
                loss = mse_loss(engine(case.own(part)), case.own(part_targets))
                engine.backward(loss / MICRO_BATCHES if case.is_wrong else loss)
                engine.step()
            if engine is None:
                optimizer.step()
                optimizer.zero_grad()


def optimizer_steps_without_engine(case: Case) -> None:
    """The loop calls the optimizer's step and not the engine's, which reduces the gradients."""
    net = make_net()
    engine = None
    optimizer = AdamW(net.parameters())
    if not case.is_reference:
        net, engine = _engine(case, MICRO_BATCHES)
    with case.record(net, None):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                if engine is None:
                    (mse_loss(net(part), part_targets) / MICRO_BATCHES).backward()
                    continue
                engine.backward(mse_loss(engine(case.own(part)), case.own(part_targets)))
                if not case.is_wrong:
                    engine.step()
            if engine is None:
                optimizer.step()
                optimizer.zero_grad()
            elif case.is_wrong:
                engine.optimizer.step()
                engine.optimizer.zero_grad()


BUGS = (
    Bug(
        divided_by_us_and_by_deepspeed,
        "scaling",
        "DeepSpeed",
        "https://github.com/deepspeedai/DeepSpeed/issues/7439",
        "parameter gradient *",
    ),
    Bug(
        optimizer_steps_without_engine,
        "accumulation",
        "DeepSpeed",
        "https://github.com/huggingface/transformers/pull/9622",
        "parameter gradient *",
    ),
)
"""In the order of docs/corpus.md."""
