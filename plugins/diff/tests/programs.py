"""Programs that are recorded: a small transformer in one process, under DDP or under `fully_shard`, with faults."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

ROWS, MICRO_BATCHES = 8, 2


class Net(nn.Module):
    """Embedding, two layers of attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(layer(16, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def main(form: str, fault: str) -> None:
    """Train three steps of two micro-batches; each rank has every second row."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model: nn.Module = net
    if form == "ddp":
        model = nn.parallel.DistributedDataParallel(net)
    elif form == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
    elif form == "compiled":
        model = torch.compile(net, backend="aot_eager")  # type: ignore[assignment]  # it is a module
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(0, 20, (ROWS, 5), generator=generator)
        optimizer.zero_grad()
        for index, part in enumerate(tokens.chunk(MICRO_BATCHES)):
            rows = part[rank::world_size]
            loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
            (loss if fault == "undivided" else loss / MICRO_BATCHES).backward()
            if fault == "lost" and index == 0:
                optimizer.zero_grad()
        if fault == "bias" and rank == 1:
            with torch.no_grad():
                net.layers[1].linear1.bias.grad.mul_(0.5)
        optimizer.step()
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
