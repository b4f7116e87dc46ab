"""GPT-2, made from a Hugging Face configuration, with one matrix for its embedding and its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed.conformance import SUBJECT
from stratagem_testing.recipe import Recipe
from stratagem_testing.trained import expect_parity
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

pytest.importorskip("transformers")


@dataclass(frozen=True)
class GPT2(Recipe):
    steps: int | None = 10
    global_batch: int = 8
    samples: int = 80

    def net(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=61,
            n_positions=16,
            n_embd=24,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return GPT2LMHeadModel(config)

    def dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(5)
        start = torch.randint(61, (self.samples, 1), generator=generator)
        return TensorDataset((start + 7 * torch.arange(12)) % 61)

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = net(input_ids=batch[0], labels=batch[0]).loss
        return loss

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        scores: Tensor = net(input_ids=batch[0]).logits
        return scores

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        named = list(net.named_parameters())
        decayed = [p for _, p in named if p.dim() >= 2]
        others = [p for _, p in named if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=1e-3)]


@pytest.mark.parametrize("stage", [2, 3])
def test_trains_as_in_one_process(stage: int, tmp_path: Path) -> None:
    options = {**SUBJECT.options, "stage": stage}
    own = replace(SUBJECT, options=options, world_size=2, folder=str(tmp_path), tolerances={"32-true": 1e-6})
    # Adam divides one rounding error by another where gradients are nearly zero.
    expect_parity(own, GPT2(), GPT2(accumulate=2, max_norm=0.5), factor=10)
