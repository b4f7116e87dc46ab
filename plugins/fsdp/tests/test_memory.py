"""Bytes of parameters, gradients and optimizer states per rank, beside what theory says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from blocks import Block, Blocks
from stratagem_fsdp import FSDPStrategy
from torch import nn

import stratagem

SIZES = (256, 8)


class Wide(Blocks):
    """Blocks of 256, in which everything else is small."""

    def build(self) -> None:
        super().build()
        self.blocks = nn.ModuleList(Block(SIZES[0]) for _ in range(SIZES[1]))
        self.head, self.held = nn.Linear(8, 11), {}

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens).repeat(1, 1, SIZES[0] // 8)
        for block in self.blocks:
            x = block(x)
        return self.out(self.head(x[..., :8]).mean(1)) * self.gain

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        # The fullest moment: gradients are there, and states already.
        optimizer.register_step_post_hook(lambda *_: self.held.update(measured(optimizer)))
        return optimizer


def measured(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    return {
        "parameters": sum(map(local_bytes, parameters)),
        "gradients": sum(local_bytes(p.grad) for p in parameters if p.grad is not None),
        "states": sum(map(local_bytes, states)),
    }


def local_bytes(tensor: Any) -> int:
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.numel() * part.element_size()


class Report(stratagem.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.held = trainer.collectives.gather_objects(module.held)

    def state_dict(self) -> dict[str, Any]:
        return {"held": getattr(self, "held", [])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


@pytest.mark.parametrize(
    ("sharding_strategy", "processes", "shards"),
    [
        ("FULL_SHARD", 2, 2),
        ("FULL_SHARD", 4, 4),
        ("SHARD_GRAD_OP", 4, 4),
        ("HYBRID_SHARD", 4, 2),
        ("NO_SHARD", 2, 1),
    ],
)
def test_each_rank_has_its_share(sharding_strategy: str, processes: int, shards: int) -> None:
    report, module = Report(), Wide(batch_size=2)
    mesh = (processes // shards, shards) if sharding_strategy == "HYBRID_SHARD" else None
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=FSDPStrategy(sharding_strategy=sharding_strategy, device_mesh=mesh, start_method="fork"),
        devices=processes,
        max_steps=2,
        limit_val_batches=0,
        callbacks=report,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    used = [p for name, p in module.named_parameters() if p.requires_grad and "unused" not in name]
    whole = 4 * sum(p.numel() for p in trained)
    with_gradients = 4 * sum(p.numel() for p in used)
    theory = {"parameters": whole, "gradients": with_gradients, "states": 2 * with_gradients}
    assert len(report.held) == processes
    for name, full in theory.items():
        per_rank = [held[name] for held in report.held]
        print(f"{sharding_strategy} {processes} {name}: {per_rank} of {full}, {full / shards:.0f} in theory")
        # Rows are dealt out whole, so that a rank may have one more of each; the scalar is everywhere.
        assert max(per_rank) <= full / shards * 1.2
        assert sum(per_rank) == pytest.approx(full * processes / shards, rel=0.001)
