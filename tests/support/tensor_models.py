"""Small transformers to be split, as recipes, and plans for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from stratagem_checkpoint.directory import DirectoryCheckpointer
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.trained import RecipeModule, train
from torch import Tensor, nn
from torch._C._distributed_c10d import _get_work_registry_size
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

import stratagem
from stratagem.collectives.local import LocalCollectives

VOCABULARY, LENGTH, WIDTH, HEADS = 16, 8, 16, 4


class Attention(nn.Module):
    """As in every tutorial: the number of heads follows from the width of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        # Keys' bias would change nothing: Adam would divide one rounding error by another.
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [layer(x) for layer in (self.q, self.k, self.v)]
        q, k, v = (part.view(*part.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    """Embeddings, two blocks, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """Torch's own encoder layers."""

    def __init__(self, batch_first: bool = True, norm_first: bool = True, heads: int = HEADS) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, heads, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        padding = tokens == 0
        padding[:, 0] = False
        floats = torch.zeros(padding.shape).masked_fill(padding, float("-inf"))
        x = self.encoder(x, mask=mask, src_key_padding_mask=floats)
        return self.head(x if self.batch_first else x.transpose(0, 1))


NETS: dict[str, Any] = {
    "encoder-one": lambda: Encoder(heads=1),
    "transformer": Transformer,
    "encoder": Encoder,
    "encoder-last": lambda: Encoder(batch_first=False, norm_first=False),
}

TENSOR: dict[str, Any] = {
    "blocks.*.attention.[qkv]": "colwise",
    "blocks.*.attention.o": "rowwise",
    "blocks.*.feed.up": ColwiseParallel(),
    "blocks.*.feed.down": RowwiseParallel(),
}

SEQUENCE: dict[str, Any] = {
    "blocks.0": "enter_sequence",
    "blocks.*.norm1": SequenceParallel(),
    "blocks.*.norm2": "sequence",
    "blocks.*.attention": "whole_input_sequence",
    "blocks.*.attention.[qkv]": "colwise",
    "blocks.*.attention.o": "rowwise_sequence",
    "blocks.*.feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "blocks.*.feed.up": "colwise",
    "blocks.*.feed.down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": "sequence",
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}

BLOCK: dict[str, Any] = {
    "attention.[qkv]": "colwise",
    "attention.o": "rowwise",
    "feed.up": "colwise",
    "feed.down": "rowwise",
}

BLOCK_IN_SEQUENCE: dict[str, Any] = {
    "norm1": "sequence",
    "norm2": "sequence",
    "attention": "whole_input_sequence",
    "attention.o": "rowwise_sequence",
    "feed": "whole_input_sequence",
    "feed.down": "rowwise_sequence",
}

LOSS: dict[str, Any] = {**TENSOR, "tokens": "rowwise", "head": "logits"}


def in_place(module: nn.Module, mesh: Any) -> None:
    """A plan that does it all by torch's own function."""
    from torch.distributed.tensor.parallel import parallelize_module

    net = module.get_submodule("net")
    for block in net.get_submodule("blocks").children():
        parallelize_module(
            block, mesh["tensor"], {"feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}
        )


def below_net(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan for a module that has the recipe's net as its `net`."""
    return {f"net.{name}": style for name, style in plan.items()}


@dataclass(frozen=True)
class Sentences(Recipe):
    """Predict the next token."""

    model: str = "transformer"
    kind: str = "sgd"
    samples: int = 64
    global_batch: int = 8

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return NETS[self.model]()

    def dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(VOCABULARY, (self.samples, LENGTH), generator=generator)
        return TensorDataset(tokens, (tokens * 5 + 1) % VOCABULARY)

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        if self.kind == "sgd":
            return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]
        decayed = [p for p in net.parameters() if p.dim() > 1]
        others = [{"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        how = {"foreach": True} if self.kind == "foreach" else {"fused": True}
        return [torch.optim.AdamW([{"params": decayed}, *others], lr=1e-3, weight_decay=0.1, **how)]


class OwnPlan(RecipeModule):
    """Says itself how it is split, knowing the mesh."""

    def parallelize(self, mesh: Any) -> dict[str, Any]:
        assert mesh.mesh_dim_names == ("data", "tensor")
        assert mesh is self.trainer.strategy.device_mesh
        return below_net(TENSOR)


class Logs(RecipeModule):
    """Logs what its layers' shards came to."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        assert isinstance(loss, DTensor)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return {"loss": loss, "logits": self.net(batch[0]).detach()}


class LastLoss(stratagem.Callback):
    """Compares what was logged with what the step returned, which is whole."""

    order = 98

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert type(outputs["loss"]) is Tensor
        assert outputs["logits"].shape == (len(batch[0]), LENGTH, VOCABULARY)
        assert trainer.callback_metrics["loss"] == float(outputs["loss"].detach())


class LateModule(RecipeModule):
    """Constructs its net where a strategy may want it without memory."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        del self.net

    def configure_model(self) -> None:
        self.net = self.recipe.net()
        assert all(parameter.is_meta for parameter in self.parameters())


class SaveAt(stratagem.Callback):
    """Saves a checkpoint after a step."""

    def __init__(self, step: int, path: str) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def save_on_the_way(subject: StrategySubject, recipe: Recipe, step: int, path: str) -> None:
    """Save after `step`. Run by every rank."""
    train(subject, recipe, [SaveAt(step, path)])


def go_on(subject: StrategySubject, recipe: Recipe, path: str) -> Trained:
    """Load, and train to the end. Run by every rank."""
    return train(subject, recipe, ckpt_path=path)


def train_class(subject: StrategySubject, recipe: Recipe, module_class: type[RecipeModule]) -> Trained:
    """Train a recipe as another module. Run by every rank."""
    return train(subject, recipe, module_class=module_class)


def train_logging(subject: StrategySubject, recipe: Recipe) -> Trained:
    """Train a module that logs DTensors. Run by every rank."""
    return train(subject, recipe, [LastLoss()], module_class=Logs)


class LocalParts(stratagem.Callback):
    """Keeps what this rank has of each parameter, in the end."""

    order = 99

    def __init__(self) -> None:
        self.parts: dict[str, tuple[str, Tensor]] = {}

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        for name, parameter in module.net.named_parameters():
            is_split = isinstance(parameter, DTensor)
            layout = str(parameter.placements) if is_split else "whole"
            part = parameter.to_local() if is_split else parameter
            self.parts[name] = layout, part.detach().clone()


def train_to_parts(subject: StrategySubject, recipe: Recipe) -> dict[str, tuple[str, Tensor]]:
    """Train, and return what this rank has. Run by every rank."""
    kept = LocalParts()
    train(subject, recipe, [kept])
    return kept.parts


def tensors_at(path: str) -> dict[str, Tensor]:
    """Return all tensors in a checkpoint. Run by one process."""
    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path)
    whole = {key: torch.empty(info.shape, dtype=info.dtype) for key, info in reader.tensors.items()}
    reader.read(whole)
    return whole


def clipped_norms(subject: StrategySubject, recipe: Recipe) -> list[float]:
    """Return the norms that clipping tells in a loop of one's own. Run by every rank."""
    return subject.runtime(seed=7).launch(_clip, recipe, quiet=True)


def _clip(runtime: Any, recipe: Recipe) -> list[float]:
    net = recipe.net()
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    batches = [
        recipe.collate([recipe.dataset()[at] for at in range(start, start + 8)]) for start in (0, 8, 16)
    ]
    norms = []
    for batch in batches:
        optimizer.zero_grad()
        runtime.backward(recipe.loss(net, batch))
        norm = runtime.clip(optimizer, max_norm=0.1)
        assert norm is not None
        norms.append(float(norm))
        optimizer.step()
        # Nothing is still being sent out of memory that is free.
        assert _get_work_registry_size() == 0
    return norms


def dropped(subject: StrategySubject) -> Any:
    """Return what dropout leaves, what it leaves when it is computed again, and what is drawn next."""
    return subject.runtime(seed=7).launch(_drop, quiet=True)


def _drop(runtime: Any) -> Any:
    net = runtime.setup(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1)))
    torch.manual_seed(3)
    given: list[Tensor] = []
    dropout = next(module for module in net.modules() if isinstance(module, nn.Dropout))
    dropout.register_forward_hook(lambda module, args, output: given.append(output.detach()))
    net.train()
    x = torch.ones(2, 64, requires_grad=True)
    checkpoint(net, x, use_reentrant=False).sum().backward()
    return given[0], given[1], float(torch.rand(()))
