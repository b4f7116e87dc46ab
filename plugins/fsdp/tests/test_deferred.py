"""Construction without memory gives what construction on the CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks import Block, Blocks, LateBlocks
from stratagem_fsdp import FSDPStrategy, materialize
from stratagem_fsdp.deferred import Construction
from torch import nn

import stratagem


class Tricky(nn.Module):
    """Initialises its children's parameters, draws in between, ties, fills parts, copies, and computes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.first = nn.Linear(8, 8)
        torch.rand(3)
        self.tied = self.first.weight
        self.embedding = nn.Embedding(5, 8, padding_idx=2)
        self.orthogonal = nn.Linear(4, 4)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        nn.init.trunc_normal_(self.first.weight, std=0.02)
        nn.init.trunc_normal_(self.attention.out_proj.weight, a=-0.5, b=0.5)
        with torch.no_grad():
            self.first.bias[2:5] = 7.0
            self.embedding.weight[0].copy_(self.first.weight[1] * 2)
        frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("literal", torch.tensor([1.0, 2.0, 3.0]))
        torch.manual_seed(11)
        self.last = nn.LSTM(3, 4)
        self.loaded = nn.Linear(3, 2)
        self.loaded.load_state_dict({"weight": torch.full((2, 3), 4.0, device="cpu"), "bias": torch.zeros(2)})


@pytest.mark.parametrize("make", [Tricky, lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), Block])
def test_every_value_is_the_one_of_construction_on_the_cpu(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    expected, drawn = make(), torch.rand(2)
    construction = Construction()
    torch.manual_seed(3)
    with construction.recorded():
        late = make()
    assert torch.equal(torch.rand(2), drawn)
    assert all(parameter.is_meta for parameter in late.parameters())
    ours = [*late.named_parameters(), *late.named_buffers()]
    theirs = dict([*expected.named_parameters(), *expected.named_buffers()])
    before = torch.get_rng_state()
    # One by one, and last to first: no tensor needs the others to be there.
    for name, tensor in reversed(ours):
        if tensor.is_meta:
            assert construction.knows(tensor)
            (tensor,) = construction.materialize([tensor])
        assert torch.equal(tensor, theirs[name]), name
    assert torch.equal(torch.get_rng_state(), before)


def test_attributes_that_are_neither_parameters_nor_buffers_are_filled() -> None:
    construction, module = Construction(), nn.Module()
    with construction.recorded():
        module.weights = {"of": [torch.arange(3), "words"]}
    construction.fill_attributes(module)
    assert torch.equal(module.weights["of"][0], torch.arange(3))


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


def test_values_that_nothing_tells_are_refused() -> None:
    with pytest.raises(
        stratagem.ConfigError, match=r"'(module\.)?layer\.weight' is on the meta device and nothing tells"
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
