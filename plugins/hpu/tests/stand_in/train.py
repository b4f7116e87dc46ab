"""Train one module under a strategy on stand-ins, and under its like on the CPU: print how far apart they end."""

from __future__ import annotations

import sys
import tempfile

import torch
from stand_in_hpu import Manual, Regression, StandInHPUAccelerator
from torch.utils.data import DataLoader, TensorDataset

import stratagem


def trained(cls: type[Regression], strategy: str, accelerator: object, devices: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    clip = {} if cls is Manual else {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    module = cls()
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator=accelerator,
        devices=devices,
        max_epochs=2,
        default_root_dir=tempfile.mkdtemp(),
        enable_progress_bar=False,
        **clip,
    )
    trainer.fit(module, loader, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16))
    return [parameter.detach() for parameter in module.parameters()]


def main() -> None:
    devices = int(sys.argv[1])
    ours, other = ("hpu_single", "single") if devices == 1 else ("hpu_parallel", "ddp")
    for cls in (Regression, Manual):
        pairs = zip(trained(cls, ours, StandInHPUAccelerator(), devices), trained(cls, other, "cpu", devices))
        print(cls.__name__, "differs by", max(float((a - b).abs().max()) for a, b in pairs))


if __name__ == "__main__":
    main()
