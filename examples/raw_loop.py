"""A training loop of your own, under any strategy: the digits once more, without Trainer and Module.

stratagem run examples/raw_loop.py
stratagem run --strategy ddp --devices 2 examples/raw_loop.py --epochs 12
torchrun --nproc-per-node 2 examples/raw_loop.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from stratagem import Runtime


def main(runtime: Runtime, epochs: int, checkpoint: str | None) -> float:
    """What every process does; returns the accuracy on held-out images."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]

    data = DataLoader(TensorDataset(images[train], labels[train]), batch_size=32, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = runtime.setup(model, torch.optim.AdamW(model.parameters(), lr=5e-3))
    loader = runtime.dataloader(data)

    for epoch in range(epochs):
        for batch, targets in loader:
            loss = F.cross_entropy(model(batch), targets)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        # Each process has the loss of its last batch.
        runtime.print(f"epoch {epoch}: loss {runtime.all_reduce(loss).item():.4f}")

    if checkpoint is not None:
        runtime.save(checkpoint, {"epochs": epochs})

    # A small test set: every process computes the same on all of it.
    batch, targets = images[test].to(runtime.device), labels[test].to(runtime.device)
    model.eval()
    with torch.no_grad():
        accuracy = (model(batch).argmax(dim=1) == targets).float().mean().item()
    runtime.print(f"accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--checkpoint", help="folder to write to at the end")
    arguments = parser.parse_args()
    Runtime(seed=1).launch(main, arguments.epochs, arguments.checkpoint)
