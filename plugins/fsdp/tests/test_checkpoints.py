"""Checkpoints go between single, ddp and fsdp at any world size; the run goes on as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import Blocks
from stratagem_fsdp import FSDPStrategy

import stratagem

BATCH = 8
HYBRID = {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2)}
RUNS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "single": ("single", 1, {}),
    "ddp1": ("ddp_fork", 1, {"find_unused_parameters": True}),
    "ddp2": ("ddp_fork", 2, {"find_unused_parameters": True}),
    "ddp4": ("ddp_fork", 4, {"find_unused_parameters": True}),
    "fsdp1": ("fsdp", 1, {"start_method": "fork"}),
    "fsdp2": ("fsdp", 2, {"start_method": "fork"}),
    "fsdp4": ("fsdp", 4, {"start_method": "fork"}),
    "hybrid4": ("fsdp", 4, {"start_method": "fork", **HYBRID}),
}


class SaveAt(stratagem.Callback):
    def __init__(self, batches: int, path: Path) -> None:
        self.left, self.path = batches, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)


def fit(run: str, steps: int, ckpt_path: Path | None = None, **how: Any) -> dict[str, torch.Tensor]:
    strategy, devices, options = RUNS[run]
    module = Blocks(batch_size=BATCH // devices)
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        strategy_options=options,
        devices=devices,
        seed=7,
        max_steps=steps,
        gradient_clip_val=0.5,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        **how,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items() if "statistics" not in name}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, torch.Tensor]:
    return fit("single", 8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of each kind of run, in the middle of its first epoch."""
    paths: dict[str, Path] = {}

    def of(run: str) -> Path:
        if run not in paths:
            paths[run] = tmp_path_factory.mktemp(run) / "ckpt"
            fit(run, 4, callbacks=SaveAt(4, paths[run]))
        return paths[run]

    return of


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("single", after) for after in ("fsdp1", "fsdp2", "fsdp4", "hybrid4")),
        *(("fsdp2", after) for after in ("single", "ddp1", "ddp2", "ddp4", "fsdp1", "fsdp2", "fsdp4")),
        *(("fsdp4", after) for after in ("single", "ddp2", "fsdp2", "fsdp4")),
        *(("ddp2", "fsdp4"), ("ddp4", "fsdp2"), ("fsdp1", "fsdp4"), ("fsdp1", "ddp2"), ("hybrid4", "fsdp2")),
    ],
)
def test_goes_on_in_mid_epoch(saved: Any, uninterrupted: Any, before: str, after: str) -> None:
    ours = fit(after, 8, saved(before))
    for name, value in ours.items():
        torch.testing.assert_close(value, uninterrupted[name], atol=1e-6, rtol=0, msg=name)


def test_buffers_are_those_of_rank_0(saved: Any) -> None:
    # Rank 0 of two averaged its own half of each batch: another mean than one process has.
    module = Blocks()
    read(module, saved("fsdp2"))
    mean = module.statistics.running_mean.clone()
    for run in ("ddp2", "single"):
        read(module, saved(run))
        same = torch.allclose(module.statistics.running_mean, mean, atol=1e-6)
        assert same == (run == "ddp2")


def read(module: Blocks, path: Path) -> None:
    trainer = stratagem.Trainer(
        accelerator="cpu", strategy="single", enable_progress_bar=False, limit_test_batches=1
    )
    trainer.test(module, ckpt_path=path)


def test_evaluates_and_predicts_a_checkpoint_each_sample_once(saved: Any) -> None:
    results = []
    for run in ("single", "fsdp2", "fsdp4"):
        strategy, devices, options = RUNS[run]
        how: dict[str, Any] = {"strategy": strategy, "devices": devices, "strategy_options": options}
        trainer = stratagem.Trainer(accelerator="cpu", enable_progress_bar=False, **how)
        # 29 samples: nothing divides them evenly.
        (metrics,) = trainer.test(Blocks(batch_size=4), ckpt_path=saved("fsdp2"))
        assert metrics["seen"] == 29
        predicted = torch.cat(trainer.predict(Blocks(batch_size=4), ckpt_path=saved("fsdp2")))
        results.append((metrics["val_loss"], predicted))
    for loss, predicted in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-6)
        torch.testing.assert_close(predicted, results[0][1], atol=1e-6, rtol=0)


def test_a_runtime_saves_and_loads(tmp_path: Path) -> None:
    runtime = stratagem.Runtime(
        strategy=FSDPStrategy(start_method="fork"), accelerator="cpu", devices=2, seed=1
    )
    first, second = runtime.launch(loop, tmp_path / "ckpt")
    assert first == second


def loop(runtime: Any, path: Path) -> Any:
    module = Blocks()
    model, optimizer = runtime.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
    tokens = torch.arange(6).repeat(4, 1) + runtime.rank

    def step() -> float:
        loss = model(tokens).square().mean()
        runtime.backward(loss)
        with torch.no_grad():
            model(tokens)  # gathers parameters that are stepped next
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    step()
    runtime.save(path)
    first = [step(), step()]
    runtime.load(path)
    return first, [step(), step()]
