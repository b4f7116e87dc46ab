"""DeepSpeed's engine under Stratagem beside itself by hand: python tests/benchmarks/deepspeed_engine.py

Speed: the same engine takes the same steps by a plain loop and by Trainer, in turns, in one process on
one thread; the figure is the median over the rounds of the ratio of steps per second of CPU time.

Memory: what rank 0 holds of parameters, gradients and optimizer states in 32 bits, after a step of Adam,
beside what ZeRO's arithmetic says. The engine's buckets, and activations, aren't counted.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext, redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from stratagem_deepspeed import DeepSpeedStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "150"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
WARM = 20
BATCH, WIDTH = 64, 384
TARGET = 0.95
BUCKETS = {"reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000}
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"overlap_comm": True, "stage3_param_persistence_threshold": 0, **BUCKETS},
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(BATCH * (STEPS + WARM), WIDTH)), BATCH)


class Timed(stratagem.Module):
    """Notes when its steps begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.calls, self.began, self.ended = 0, 0.0, 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM:
            self.began = time.process_time()
        elif self.calls == WARM + STEPS:
            self.ended = time.process_time()
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return loader()


def by_trainer(stage: int, folder: str) -> float:
    module = Timed()
    trainer = stratagem.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=DeepSpeedStrategy(stage=stage, stage3_param_persistence_threshold=0, **BUCKETS),
        max_epochs=1,
        run_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    # The plan is of no interest here.
    with redirect_stderr(StringIO()):
        trainer.fit(module)
    return STEPS / (module.ended - module.began)


def by_hand(stage: int) -> float:
    strategy = DeepSpeedStrategy(stage=stage, **BUCKETS)
    rate: float = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=1).launch(
        _loop, stage, quiet=True
    )
    return rate


def _loop(runtime: Any, stage: int) -> float:
    """A plain loop around the engine; the runtime has opened the process group, no more."""
    from stratagem_deepspeed.library import load

    deepspeed, module = load("cpu"), Timed()
    config = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": stage}}
    engine, *_ = deepspeed.initialize(
        model=module.net, optimizer=module.configure_optimizers(), config=config, dist_init_required=False
    )
    began = 0.0
    for index, (x,) in enumerate(loader(), 1):
        if index == WARM:
            began = time.process_time()
        elif index == WARM + STEPS:
            break
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
    rate = STEPS / (time.process_time() - began)
    engine.destroy()
    return rate


def held(world_size: int, stage: int) -> tuple[int, int, int]:
    strategy = DeepSpeedStrategy(
        stage=stage, stage3_param_persistence_threshold=0, start_method="popen", **BUCKETS
    )
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=world_size)
    sizes: tuple[int, int, int] = runtime.launch(_measure, quiet=True)
    return sizes


def _measure(runtime: Any) -> tuple[int, int, int]:
    return engine_bytes(runtime, net(), partial(torch.optim.AdamW, lr=1e-4), torch.ones(2, WIDTH))


def engine_bytes(runtime: Any, net: nn.Module, adam: Any, batch: Tensor) -> tuple[int, int, int]:
    """Train a step of two micro-batches; return bytes of parameters, gradients and optimizer states here.

    Gradients are counted between the micro-batches, where stage 1 still has all of them, and stage 2 its
    part in a list. From stage 1 on, the states have a copy of the rank's parameters in 32 bits.
    """
    module, optimizer = runtime.setup(net, lambda module: adam(module.parameters()), accumulate=2)
    prepared = runtime._prepared[-1]
    stage, zero = prepared.stage, prepared.engine.optimizer
    for last in (False, True):
        with nullcontext() if last else runtime.no_sync(module):
            runtime.backward(module(batch).square().mean(), module)
        if not last:
            gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
            for kept in ("averaged_gradients", "all_grad_tensors") if stage else ():
                gradients += _nbytes(getattr(zero, kept, {}))
    optimizer.step()
    parameters = sum((p.ds_tensor if stage == 3 else p).nbytes for p in module.parameters())
    state = zero.optimizer.state if stage else zero.state
    states = _nbytes({id(flat): list(each.values()) for flat, each in state.items()})
    masters = sum(flat.nbytes for flat in state) if stage else 0
    return parameters, gradients, states + masters


def _nbytes(groups: Any) -> int:
    tensors = [t for each in groups.values() if each is not None for t in each if isinstance(t, Tensor)]
    return sum(t.nbytes for t in tensors if t.numel() > 1)


def theory(world_size: int, stage: int) -> tuple[float, float, float]:
    whole = 4.0 * sum(p.numel() for p in net().parameters())
    share = whole / world_size
    states = 2 * whole if stage == 0 else 3 * share
    return (share if stage == 3 else whole, share if stage >= 2 else whole, states)


def main() -> int:
    torch.set_num_threads(1)
    out = Console(width=110, highlight=False)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for stage in (2, 3):
            ratios = []
            for _ in range(ROUNDS):
                hand, ours = by_hand(stage), by_trainer(stage, folder)
                ratios.append(ours / hand)
            middle = statistics.median(ratios)
            failed |= middle < TARGET
            said = f"{min(ratios):.3f} to {max(ratios):.3f} over {ROUNDS} rounds of {STEPS} steps"
            out.print(
                f"stage {stage}: Trainer over the engine by hand {middle:.3f} ({said}; target {TARGET})"
            )
    table = Table(
        "stage", "processes", "parameters", "gradients", "optimizer", title="MB on rank 0: measured (theory)"
    )
    for stage in range(4):
        for world_size in (1, 2, 4):
            pairs = zip(held(world_size, stage), theory(world_size, stage))
            table.add_row(
                str(stage), str(world_size), *(f"{got / 1e6:.2f} ({want / 1e6:.2f})" for got, want in pairs)
            )
    out.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
