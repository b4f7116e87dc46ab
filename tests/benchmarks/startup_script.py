"""The script of startup.py that starts its own processes: torch imported at its top, `Trainer` or `Runtime`."""

from __future__ import annotations

import sys

import torch
from startup_program import Startup, dataset, net, note_first_step
from torch.nn import functional as F
from torch.utils.data import DataLoader

from stratagem import Runtime, Trainer


def steps(runtime: Runtime) -> None:
    model = net()
    model, optimizer = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for x, y in runtime.dataloader(DataLoader(dataset(), 16)):
        loss = F.cross_entropy(model(x), y)
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        break
    note_first_step(runtime.rank)


if __name__ == "__main__":
    run = {"strategy": "ddp", "accelerator": "cpu", "devices": int(sys.argv[2])}
    if sys.argv[1] == "Runtime":
        Runtime(**run).launch(steps)
    else:
        once = {"max_steps": 1, "limit_train_batches": 1, "enable_checkpointing": False}
        Trainer(**run, **once, run_dir="run").fit(Startup())
