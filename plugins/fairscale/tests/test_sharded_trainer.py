"""fairscale_sharded by the Trainer: checkpoints that go to ddp and back, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Net
from small import Line
from torch import nn

import stratagem
from stratagem import ConfigError

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

from stratagem_fairscale import FairScaleShardedStrategy


class Grouped(Net):
    """Two groups of parameters, each with a schedule of its own."""

    def configure_optimizers(self) -> Any:
        conv, linear = self.net[0].parameters(), self.net[4].parameters()
        optimizer = torch.optim.AdamW([{"params": conv, "lr": 1e-2}, {"params": linear, "lr": 3e-3}])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: 0.9**s, lambda s: 1 / (1 + s)])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class SaveAt3(stratagem.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 3 and batch_idx % 2:
            trainer.save_checkpoint(self.path)


def fit(
    folder: Path, strategy: str, save: Path | None = None, ckpt_path: Path | None = None, **how: Any
) -> Any:
    devices = 1 if strategy == "single" else 2
    module = Grouped(batch_size=16 // devices)
    stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        strategy_options={} if strategy == "single" else {"start_method": "fork"},
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        max_steps=6,
        enable_progress_bar=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        logger=False,
        run_dir=folder / "run",
        seed=7,
        callbacks=[] if save is None else [SaveAt3(save)],
        **how,
    ).fit(module, ckpt_path=ckpt_path)
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_checkpoints_go_to_ddp_and_back_and_a_resumed_run_has_every_bit(tmp_path: Path) -> None:
    plain = fit(tmp_path, "single")
    ours = fit(tmp_path, "fairscale_sharded", save=tmp_path / "ours")
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0)
    torch.testing.assert_close(fit(tmp_path, "ddp", save=tmp_path / "ddp"), plain, atol=1e-6, rtol=0)
    resumed = fit(tmp_path, "fairscale_sharded", ckpt_path=tmp_path / "ours")
    assert all(map(torch.equal, resumed, ours))
    for strategy, saved in (("ddp", "ours"), ("fairscale_sharded", "ddp")):
        resumed = fit(tmp_path, strategy, ckpt_path=tmp_path / saved)
        torch.testing.assert_close(resumed, plain, atol=1e-6, rtol=0)


# Refusals -----------------------------------------------------------------------------------------------


class Unfit(Line):
    """Its optimizers are what OSS would get wrong."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.other = how, nn.Linear(4, 1, dtype=torch.float64)

    def configure_optimizers(self) -> Any:
        own = [*self.layer.parameters()]
        if self.how == "shared":
            return [torch.optim.SGD(own, lr=0.1) for _ in range(2)]
        groups = [own, [*self.other.parameters()]] if self.how == "mixed" else [[], own]
        return torch.optim.SGD([{"params": group} for group in groups], lr=0.1)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shared", "'layer.weight' is in two optimizers"),
        ("mixed", "takes one dtype for each"),
        ("empty", "the first group of SGD has no parameters"),
    ],
)
def test_what_oss_would_get_wrong_is_refused(tmp_path: Path, how: str, message: str) -> None:
    trainer = stratagem.Trainer(
        strategy=FairScaleShardedStrategy(start_method="fork"),
        accelerator="cpu",
        devices=2,
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        run_dir=tmp_path,
    )
    with pytest.raises(ConfigError, match=message):
        trainer.fit(Unfit(how))


def test_scaled_gradients_are_refused_before_launch(tmp_path: Path) -> None:
    with pytest.raises(stratagem.PrecisionError, match="16-mixed"):
        stratagem.Trainer(
            strategy="fairscale_sharded", accelerator="cpu", devices=2, precision="16-mixed", run_dir=tmp_path
        ).fit(Line())
