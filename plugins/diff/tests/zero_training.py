"""Train a small network with plain torch, or under torchrun with DeepSpeed's ZeRO, and record it: FOLDER."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from stratagem_diff import record
from torch import Tensor, nn
from torch.nn.functional import mse_loss

STEPS, MICRO_BATCHES, ROWS, MAX_NORM = 3, 2, 4, 0.5


def make(decay_of_vectors: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    # 17 columns: no rank has as many elements of a tensor as another.
    net = nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.LayerNorm(17), nn.Linear(17, 3))
    matrices = [each for each in net.parameters() if each.dim() > 1]
    vectors = [each for each in net.parameters() if each.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": decay_of_vectors},
    ]
    return net, torch.optim.AdamW(groups, lr=1e-2)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(ROWS, 6, generator=generator), torch.randn(ROWS, 3, generator=generator)


def train_plainly(folder: str, rounding: bool) -> None:
    net, optimizer = make(0.0)
    data = batches()
    with record(net, None, folder, steps=STEPS, rounding=rounding):
        for _ in range(STEPS):
            for _ in range(MICRO_BATCHES):
                rows, targets = next(data)
                (mse_loss(net(rows), targets) / MICRO_BATCHES).backward()
            nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()


def train_with_zero(folder: str, stage: int, decay_of_vectors: float) -> None:
    import deepspeed

    net, optimizer = make(decay_of_vectors)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": ROWS // 2,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]
    rank, data = int(os.environ["RANK"]), batches()
    with record(net, None, folder, steps=STEPS):
        for _ in range(STEPS * MICRO_BATCHES):
            rows, targets = next(data)
            engine.backward(mse_loss(engine(rows[rank::2]), targets[rank::2]))
            engine.step()


if __name__ == "__main__":
    records = sys.argv[1]
    if "RANK" in os.environ:
        for stage in (1, 2, 3):
            train_with_zero(f"{records}/stage-{stage}", stage, 0.0)
            train_with_zero(f"{records}/decayed-{stage}", stage, 0.1)
    else:
        train_plainly(f"{records}/plain", rounding=False)
        train_plainly(f"{records}/rounding", rounding=True)
