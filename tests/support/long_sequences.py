"""Small transformers whose sequences are cut among ranks, and what the ranks of a run compute with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from allocation import allocated
from stratagem_model_parallel import sum_over_sequence
from stratagem_testing import StrategySubject
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stratagem

VOCABULARY, TOKENS, WIDTH, HEADS = 16, 16, 32, 4


class Attention(nn.Module):
    """Grouped queries and rotary positions; takes masks of whole sequences."""

    def __init__(self, few: int, dropout: float) -> None:
        super().__init__()
        self.few, self.dropout = few, dropout
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, few * WIDTH // HEADS) for _ in range(2))

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q, k = (turned(each, rope) for each in (q, k))
        out = F.scaled_dot_product_attention(
            q, k, v, mask, self.dropout, is_causal=mask is None, enable_gqa=self.few != HEADS
        )
        return self.o(out.transpose(1, 2).flatten(2))


def turned(x: Tensor, rope: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * rope.cos() - second * rope.sin(), first * rope.sin() + second * rope.cos()], -1)


class Block(nn.Module):
    def __init__(self, few: int = HEADS, dropout: float = 0.0, recomputed: str = "") -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(few, dropout)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout, self.recomputed = nn.Dropout(dropout), recomputed

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        attend: Callable[..., Tensor] = self.attention
        if self.recomputed == "attention":
            attend = lambda *args: checkpoint(self.attention, *args, use_reentrant=False)  # noqa: E731
        x = x + self.dropout(attend(self.norm1(x), rope, mask))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    """Embeddings, blocks, and a head whose logits are of a rank's shard alone in `loss`."""

    def __init__(self, layers: int = 2, recomputed: str = "", **options: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputed=recomputed, **options) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.recomputed = recomputed

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens)
        of_rope = {"dtype": x.dtype, "device": x.device}
        places = torch.arange(tokens.shape[1], **of_rope)
        rope = places[:, None] / 10 ** torch.linspace(0, 2, WIDTH // HEADS // 2, **of_rope)
        for block in self.blocks:
            if self.recomputed == "block":
                x = checkpoint(block, x, rope, mask, use_reentrant=False)
            else:
                x = block(x, rope, mask)
        return x

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.hidden(tokens, mask)))

    def losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), labels.flatten(), reduction="sum")


class Biased(Transformer):
    """Adds learned biases of heads to scores."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS))

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        return super().hidden(tokens, self.biases.masked_fill(later, float("-inf")))


class Encoder(nn.Module):
    """Torch's own encoder layers."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 64, dropout=0.0, batch_first=batch_first, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=x.dtype)
        x = self.encoder(x, mask=causal, src_key_padding_mask=mask, is_causal=mask is None)
        return self.head(x if self.batch_first else x.transpose(0, 1))


def transformers_model(name: str) -> nn.Module:
    """GPT-2 or Llama, whose positions say where a packed sequence begins."""
    from language_models import MODELS

    return MODELS[name]()


NETS: dict[str, Callable[[], nn.Module]] = {
    "heads": Transformer,
    "grouped": lambda: Transformer(few=2),
    "one for all": lambda: Transformer(few=1),
    "learned biases": Biased,
    "recomputed": lambda: Transformer(recomputed="block"),
    "encoder": Encoder,
    "encoder, tokens first": lambda: Encoder(batch_first=False),
    "gpt2": lambda: transformers_model("gpt2"),
    "llama": lambda: transformers_model("llama"),
}

CUT = {"blocks.*": {"x": 1, "rope": 0}}


@dataclass(frozen=True)
class Case:
    """A net, and the mask of its attention."""

    net: str
    mask: str = "causal"
    sharded_loss: bool = False
    """Logits are of a rank's shard of the sequence."""

    def made(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return NETS[self.net]().double()

    def batch(self) -> dict[str, Tensor]:
        """Four sequences."""
        generator = torch.Generator().manual_seed(5)
        length = 12 if self.net in ("gpt2", "llama") else TOKENS
        tokens = torch.randint(VOCABULARY, (4, length), generator=generator)
        if self.net in ("gpt2", "llama"):
            return {"input_ids": tokens, "labels": tokens, **self._of_transformers(length)}
        return {"tokens": tokens, **({} if self.mask == "causal" else {"mask": self._mask(generator)})}

    def _of_transformers(self, length: int) -> dict[str, Tensor]:
        if self.mask == "padding":
            return {"attention_mask": (torch.arange(length) < torch.tensor([[12], [7], [12], [3]])).long()}
        if self.mask == "packed":
            return {"position_ids": torch.cat([torch.arange(5), torch.arange(length - 5)]).expand(4, -1)}
        return {}

    def _mask(self, generator: torch.Generator) -> Tensor:
        causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        filled = torch.arange(TOKENS) < torch.tensor([16, 9, 3, 12])[:, None]
        if "encoder" in self.net:
            return torch.zeros(4, TOKENS).double().masked_fill(~filled, float("-inf"))
        if self.mask == "padding":
            return causal & filled[:, None, None, :]
        if self.mask == "padding alone":
            return filled[:, None, None, :]
        if self.mask == "packed":
            documents = torch.tensor([0] * 5 + [1] * 8 + [2] * 3)
            return causal & (documents[:, None] == documents[None, :])
        if self.mask == "nothing":  # some tokens may look at none
            return causal & ~torch.eye(TOKENS, dtype=torch.bool)
        biases = torch.randn(4, HEADS, TOKENS, TOKENS, generator=generator).double()
        return biases.masked_fill(~causal, float("-inf"))

    def loss(self, net: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean over tokens, and what the net gives."""
        if "labels" in batch:
            given = net(**batch)
            return given.loss, given.logits
        labels = (batch["tokens"] * 5 + 1) % VOCABULARY
        if self.sharded_loss:
            hidden = net.hidden(**batch)
            return sum_over_sequence(net.losses, hidden, labels) / labels.numel(), hidden
        logits = net(**batch)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


@dataclass
class Computed:
    loss: Tensor
    output: Tensor
    gradients: dict[str, Tensor]


def plainly(case: Case) -> Computed:
    """Compute a case in this process, with nothing but torch."""
    net = case.made()
    loss, output = case.loss(net, case.batch())
    loss.backward()
    return Computed(loss.detach(), output.detach(), gradients_of(net))


def gradients_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


class Sharing(nn.Module):
    """So that a strategy's wrapper is called for what isn't the net's forward."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.net = case, case.made()

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.case.loss(self.net, batch)


def compute(subject: StrategySubject, cases: list[Case]) -> list[Computed]:
    """Compute cases under the strategy. Run by every rank."""
    return subject.runtime(seed=7, precision="64-true").launch(_compute, cases, quiet=True)


def of_class(module: nn.Module, mesh: Any) -> Any:
    """The plan for whichever net there is."""
    assert mesh.mesh_dim_names == ("data", "context")
    if isinstance(module, Sharing) and isinstance(module.net, Transformer):
        return {f"net.{name}": inputs for name, inputs in CUT.items()}
    return CUT if isinstance(module, Biased) else getattr(module, "plan", None)


def _compute(runtime: stratagem.Runtime, cases: list[Case]) -> list[Computed]:
    done = []
    for case in cases:
        module = Sharing(case)
        net, optimizer = runtime.setup(module, torch.optim.SGD(module.parameters(), lr=0.0))
        rank, size = runtime.data_rank, runtime.data_ranks
        batch = {name: x.chunk(size)[rank] if len(x) == 4 else x for name, x in case.batch().items()}
        loss, output = net({name: x.to(runtime.device) for name, x in batch.items()})
        runtime.backward(loss, net)
        optimizer.step()
        gradients = {name: each.cpu() for name, each in gradients_of(module.net).items()}
        done.append(Computed(loss.detach().cpu(), output.detach().cpu(), gradients))
    return done


def saved_bytes(subject: StrategySubject | None, layers: int) -> int:
    """Return the bytes of activations that autograd keeps for backward, on this rank. Run by every rank."""
    if subject is None:
        return _saved(None, layers)
    return subject.runtime(seed=7, precision="64-true").launch(_saved, layers, quiet=True)


def _saved(runtime: stratagem.Runtime | None, layers: int) -> int:
    case = Case("heads", sharded_loss=True)
    module = Sharing(case)
    module.net = Transformer(layers).double()
    net: Any = module
    if runtime is not None:
        net, _ = runtime.setup(module, torch.optim.SGD(module.parameters(), lr=0.0))
    batch = {"tokens": torch.randint(VOCABULARY, (2, 256), generator=torch.Generator().manual_seed(1))}
    net(batch)[0].backward()  # what is made once
    before = allocated()
    loss = net(batch)[0]
    after = allocated()
    assert loss.requires_grad
    return after - before


@dataclass
class Dropped:
    outputs: Tensor
    again: Tensor
    next_draw: float


def dropped(subject: StrategySubject) -> Dropped:
    """Return what is left of equal tokens by dropout, the same computed again, and what is drawn next."""
    return subject.runtime(seed=7).launch(_drop, quiet=True)


def _drop(runtime: stratagem.Runtime) -> Dropped:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
    module.plan = {"0": "tokenwise"}
    net = runtime.setup(module)
    net.train()
    x = torch.ones(1, 64, 8, requires_grad=True)
    outputs: list[Tensor] = []
    module[0].register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
    checkpoint(net, x, use_reentrant=False).sum().backward()
    return Dropped(outputs[0], outputs[1], float(torch.rand(())))


class Eager(Block):
    """Computes attention by itself."""

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class OwnMask(Block):
    """Makes its mask of what comes in."""

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, rope, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


class InPlace(Block):
    """Changes what attention returned."""

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        return out.mul_(2)


class Cross(Block):
    """Looks at other tokens than its own."""

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(x[:, None], x[:, None, :1], x[:, None, :1])[:, 0]


class Shortening(Block):
    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, rope, mask)[:, ::2]


class Weights(nn.Module):
    """MultiheadAttention with what it looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x, x, x)[0]


def of_blocks(make: Callable[[], nn.Module], plan: Any = None) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        net = Transformer()
        net.blocks = nn.ModuleList(make() for _ in range(2))
        net.plan = plan or CUT
        return net

    return made


class Skipping(Transformer):
    """Leaves a block out."""

    def __init__(self, left_out: int) -> None:
        super().__init__()
        self.left_out, self.plan = left_out, CUT

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x, rope = self.tokens(tokens), torch.zeros(tokens.shape[1], WIDTH // HEADS // 2)
        for index, block in enumerate(self.blocks):
            x = x if index == self.left_out else block(x, rope, mask)
        return x


def _compiled() -> nn.Module:
    block = Block()
    block.compile()
    return block


def _hooked() -> nn.Module:
    block = Block()
    block.feed[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return block


class Odd(Block):
    """Has another number of heads than ranks can share."""

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
        q = x[..., :30].unflatten(-1, (3, 10)).transpose(1, 2)
        return x + F.pad(F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2), (0, 2))


def _nested() -> nn.Module:
    net = Encoder()
    net.encoder.enable_nested_tensor = True
    net.encoder.use_nested_tensor = True
    return net.eval()


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "eager": of_blocks(Eager),
    "own mask": of_blocks(OwnMask),
    "cross": of_blocks(Cross),
    "in place": of_blocks(InPlace),
    "shortening": of_blocks(Shortening),
    "weights": of_blocks(Weights),
    "odd": of_blocks(Odd),
    "recomputed within": of_blocks(lambda: Block(recomputed="attention")),
    "compiled": of_blocks(_compiled),
    "without the first": lambda: Skipping(0),
    "without the last": lambda: Skipping(1),
    "tokenwise": of_blocks(Cross, {"blocks.*": "tokenwise"}),
    "no such style": of_blocks(Block, {"blocks.*": "colwise"}),
    "no such argument": of_blocks(Block, {"blocks.*": {"hidden": 1}}),
    "no such module": of_blocks(Block, {"layers.*": "block"}),
    "nested": of_blocks(Block, {"blocks.*": "block", "blocks.*.feed": "tokenwise"}),
    "hooked": of_blocks(_hooked),
    "learned biases": Biased,
    "unknown": lambda: nn.Sequential(nn.Linear(2, 2)),
}
"""Name → a net that context_parallel refuses."""


def refusals(subject: StrategySubject, names: list[str], length: int = TOKENS) -> dict[str, str]:
    """Return what each net is refused with, before a step. Run by every rank."""
    return subject.runtime(seed=7).launch(_refusals, names, length, quiet=True)


def _refusals(runtime: stratagem.Runtime, names: list[str], length: int) -> dict[str, str]:
    reported = {}
    for name in names:
        try:
            module = REFUSED[name]()
            net, _ = runtime.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
            output = net(torch.ones(2, length, dtype=torch.long))
            runtime.backward(output.sum(), net)
        except stratagem.StratagemError as error:
            reported[name] = str(error)
        else:
            reported[name] = "trained"
    return reported
