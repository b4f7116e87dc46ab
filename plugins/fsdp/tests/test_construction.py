"""Modules made in `configure_model` get their values a unit at a time, once sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from blocks import Block, Blocks, LateBlocks
from stratagem_fsdp import FSDPStrategy
from stratagem_sharding.deferred_init import materialize
from torch import nn

import stratagem


def fit(module: Any, devices: int, **how: Any) -> Any:
    callbacks = how.pop("callbacks", None)
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=FSDPStrategy(start_method="fork", **how),
        devices=devices,
        seed=7,
        max_steps=1,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        callbacks=callbacks,
    )
    trainer.fit(module)
    return trainer


class Deep(LateBlocks):
    """Eight blocks of equal size and next to nothing else."""

    def build(self) -> None:
        super().build()
        self.blocks = nn.ModuleList(Block(256) for _ in range(8))

    def forward(self, tokens: Any) -> Any:
        self.blocks[0](torch.zeros(1, 256))
        return self.out(self.head(self.embedding(tokens)).mean(1)) * self.gain


# Layers are made in the workers alone: the launching process's module stays as it was, and fit says so.
@pytest.mark.filterwarnings("ignore:this process's .* keeps the values:UserWarning")
def test_no_rank_ever_holds_more_than_its_shards_and_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    fill = materialize.Materializer.fill

    def watched(self: Any, unit: nn.Module, inner: set[nn.Module]) -> None:
        fill(self, unit, inner)
        root = self.root
        memory = {
            storage.data_ptr(): storage.nbytes()
            for tensor in (*root.parameters(), *root.buffers())
            if not tensor.is_meta
            for storage in [local(tensor).untyped_storage()]
        }
        held.append(sum(memory.values()))

    monkeypatch.setattr(materialize.Materializer, "fill", watched)

    class Report(stratagem.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"held": held}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.held = state["held"]

    report = Report()
    fit(Deep(), 4, callbacks=report)
    block = sum(parameter.numel() * 4 for parameter in Block(256).parameters())
    assert max(report.held) < 1.1 * (block * 8 / 4 + block) + 20_000
    assert len(report.held) == 9


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def test_param_init_fn_fills_each_module_that_has_tensors(tmp_path: Any) -> None:
    seen: list[str] = []

    def ones(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        module.to_empty(device="cpu", recurse=False)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            nn.init.ones_(tensor)

    module = LateBlocks(lr=0.0)
    fit(module, 1, param_init_fn=ones)
    assert seen.count("Block") == 3  # for its buffer
    assert {"Embedding", "Linear", "LayerNorm", "LateBlocks"} <= set(seen)
    assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in module.parameters())
    assert module.head.weight is module.embedding.weight


def test_values_that_nothing_tells_are_refused() -> None:
    with pytest.raises(
        stratagem.ConfigError, match=r"'(module\.)?layer\.weight' is on the meta device and nothing gives"
    ):
        fit(OnMeta(), 1)
    with pytest.raises(stratagem.ConfigError, match="param_init_fn left 'weight' of a Linear on the meta"):
        fit(OnMeta(), 1, param_init_fn=lambda module: None)


class OnMeta(Blocks):
    def build(self) -> None:
        self.layer = nn.Linear(2, 2, device="meta")


class WithData(LateBlocks):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.arange(48).remainder(11).reshape(8, 6)

    def configure_model(self) -> None:
        super().configure_model()
        assert self.out.weight.is_meta
        self.factor = torch.full((1,), 2.0)

    def train_dataloader(self) -> Any:
        return [(self.tokens, torch.ones(8, 1))]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch[0], batch[1] * self.factor), batch_idx)


def test_a_constructor_makes_what_it_makes_and_configure_model_is_deferred() -> None:
    assert fit(WithData, 1).global_step == 1
