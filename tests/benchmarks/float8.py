"""How far losses in float8 are from those in bfloat16 and float32, emulated on the CPU.

python tests/benchmarks/float8.py

Two ranks train the same small transformer with each recipe, under ddp and fsdp. It says nothing of speed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from stratagem_float8.names import MEANINGS
from torch import nn

from stratagem import Runtime

STEPS, WIDTH, LENGTH, BATCH, WORDS = 200, 64, 32, 8, 64
PRECISIONS = ("32-true", "bf16-mixed", *(name for name, (_, emulated) in MEANINGS.items() if emulated))


def main() -> None:
    """Print a table: a row per strategy and precision."""
    print(
        f"{STEPS} steps of 2 ranks\n\n"
        "| strategy | precision | last 20 losses, mean | farthest from bf16-mixed | mean distance |\n"
        "| --- | --- | ---: | ---: | ---: |"
    )
    for strategy in ("ddp", "fsdp"):
        losses = {each: _losses(strategy, each) for each in PRECISIONS}
        for precision, own in losses.items():
            apart = [abs(a - b) for a, b in zip(own, losses["bf16-mixed"])]
            print(
                f"| `{strategy}` | `{precision}` | {sum(own[-20:]) / 20:.4f} | {max(apart):.4f} | "
                f"{sum(apart) / len(apart):.4f} |",
                flush=True,
            )


def _losses(strategy: str, precision: str) -> list[float]:
    run: Callable[..., list[float]] = Runtime(
        strategy, accelerator="cpu", devices=2, precision=precision
    ).launch
    return run(train, quiet=True)


class Net(nn.Module):
    """Predicts the next of some words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each, of shape (batch, length, words)."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        logits: torch.Tensor = self.head(self.blocks(self.words(words), mask=mask, is_causal=True))
        return logits.float()  # no view, of which fully_shard warns


def train(runtime: Runtime) -> list[float]:
    """Return the mean losses over the ranks."""
    torch.set_num_threads(1)
    net = Net()
    module, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters(), 3e-3))
    generator = torch.Generator().manual_seed(runtime.rank)
    losses = []
    for _ in range(STEPS):
        # Each word follows from the one before, by one of two rules that a sequence keeps.
        words = torch.randint(WORDS, (BATCH, LENGTH), generator=generator)
        factor = torch.randint(2, (BATCH,), generator=generator) * 4 + 3
        for place in range(1, LENGTH):
            words[:, place] = (words[:, place - 1] * factor + 1) % WORDS
        logits = module(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, WORDS), words[:, 1:].reshape(-1))
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(runtime.collectives.all_reduce(loss.detach(), "mean")))
    return losses


if __name__ == "__main__":
    main()
