"""Small modules of many kinds that any right strategy trains as one process does, for `verify`."""

from __future__ import annotations

import torch
from stratagem_trainer import Module
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, TOKENS, LENGTH = 40, 4, 11, 6


def vectors(size: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(SAMPLES, size, generator=generator)
    return TensorDataset(x, (x @ torch.randn(size, 3, generator=generator)).argmax(1))


def sentences() -> TensorDataset:
    generator = torch.Generator().manual_seed(12)
    return TensorDataset(torch.randint(0, TOKENS, (SAMPLES, LENGTH), generator=generator))


class Classifier(Module):
    """A net on vectors; derive, and give it another net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = self.make_net()

    def make_net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def loss(self, batch) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(scores, batch[1]))
        self.log("val_acc", (scores.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self):
        return DataLoader(vectors(), BATCH, shuffle=True)

    def val_dataloader(self):
        return DataLoader(vectors(), BATCH)


class LanguageModel(Classifier):
    """Predicts the next token; derive, and give it another net."""

    def scores(self, tokens) -> Tensor:
        return self.net(tokens)

    def loss(self, batch) -> Tensor:
        (tokens,) = batch
        return F.cross_entropy(self.scores(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def train_dataloader(self):
        return DataLoader(sentences(), BATCH, shuffle=True)

    def val_dataloader(self):
        return DataLoader(sentences(), BATCH)


class _TiedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.inner = nn.Linear(8, 8)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.embedding(tokens))))


class Tied(LanguageModel):
    def make_net(self):
        return _TiedNet()


class Frozen(Classifier):
    def make_net(self):
        net = super().make_net()
        net[0].requires_grad_(False)
        return net

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


class BatchNormed(Classifier):
    def make_net(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class _Experts(nn.Module):
    """The best of four experts, by a gate; some ranks may use only some."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows = chosen == index
            out[rows] = expert(x[rows])
        return weight[:, None] * out


class Mixture(Classifier):
    def make_net(self):
        return _Experts()

    def loss(self, batch):
        small = self.net.gate(batch[0]).logsumexp(-1).square().mean()
        return super().loss(batch) + 1e-3 * small


class Gan(Module):
    """Two optimizers, stepped by hand, and noise."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = (
            nn.Linear(4, 6),
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)),
        )

    def training_step(self, batch, batch_idx):
        real, _ = batch
        first, second = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4, device=real.device))
        with self.toggle_grad(second):
            critic_loss = (
                F.softplus(self.critic(fake.detach())).mean() + F.softplus(-self.critic(real)).mean()
            )
            second.zero_grad()
            self.manual_backward(critic_loss)
            second.step()
        with self.toggle_grad(first):
            loss = F.softplus(-self.critic(fake)).mean()
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
        return {"loss": loss.detach()}

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.generator.parameters(), lr=1e-2),
            torch.optim.Adam(self.critic.parameters(), lr=1e-2),
        ]

    def train_dataloader(self):
        return DataLoader(vectors(), BATCH, shuffle=True)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(TOKENS, 8), nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Recurrent(LanguageModel):
    def make_net(self):
        return _Recurrent()


class HuggingFace(LanguageModel):
    def make_net(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(vocab_size=TOKENS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.1)
        )

    def scores(self, tokens):
        return self.net(input_ids=tokens).logits


class _Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))


class Transformer(LanguageModel):
    """Its validation draws random numbers, too, of which its metrics know nothing."""

    def make_net(self):
        return _Dropping()

    def validation_step(self, batch, batch_idx):
        torch.rand(3)
        super().validation_step(batch, batch_idx)


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 8, sparse=False), nn.Linear(8, TOKENS)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).cumsum(1))


class Embedded(LanguageModel):
    def make_net(self):
        return _Bag()


class SeveralOptimizers(Classifier):
    def configure_optimizers(self):
        first, second = self.net[0].parameters(), self.net[2].parameters()
        return [torch.optim.SGD(first, lr=0.1), torch.optim.Adam(second, lr=1e-2)]


class Counting(Classifier):
    """Keeps a count and an average of its weights, as buffers, that its loss looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", self.net[0].weight.detach().clone())
        self.drop = nn.Dropout(0.2)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.count += 1
            self.average.lerp_(self.net[0].weight, 0.1)
        distance = (self.net[0].weight - self.average).square().mean()
        return F.cross_entropy(self.net(self.drop(batch[0])), batch[1]) + distance / (1 + self.count)


class Noisy(Classifier):
    """Draws random numbers in evaluation mode, too."""

    def loss(self, batch):
        x = batch[0] + 0.1 * torch.randn_like(batch[0])
        return F.cross_entropy(self.net(x), batch[1])


HEALTHY = {
    cls.__name__: cls
    for cls in (
        *(Classifier, Tied, Frozen, BatchNormed, Mixture, Gan, Recurrent, HuggingFace, Transformer, Embedded),
        *(SeveralOptimizers, Counting, Noisy),
    )
}
