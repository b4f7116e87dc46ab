"""Under every preset a run goes on exactly; other numbers of ranks and evaluations see one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

POWER = {"ddp_comm_hook": "powersgd", "ddp_comm_state": {"start_powerSGD_iter": 2}}
LOCAL = {
    "ddp_comm_hook": "post_local_sgd",
    "ddp_comm_state": {"start_localSGD_iter": 2},
    "model_averaging_period": 4,
}
HIERARCHY = {**LOCAL, "model_averaging_period": None, "period_group_size": {2: 1, 4: 2}}


class Task(stratagem.Module):
    """Keeps the losses of its rank, and saves after some steps."""

    def __init__(self, path: Path | None = None, step: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 12), nn.Linear(12, 3)
        )
        self.path, self.step = path, step
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.path is not None and self.trainer.global_step == self.step and not self.path.exists():
            self.trainer.save_checkpoint(self.path)
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(64, 12, generator=generator)
        return DataLoader(
            TensorDataset(x, (x @ torch.randn(12, 3, generator=generator)).argmax(1)), 4, shuffle=True
        )

    val_dataloader = train_dataloader


class Gathered(stratagem.Callback):
    """Brings the losses of all ranks back, by rank."""

    def __init__(self) -> None:
        self.losses: list[list[float]] = []

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.losses = trainer.collectives.gather_objects(module.losses)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def fit(
    tmp_path: Path, options: dict[str, Any], task: Task, devices: int = 2, **how: Any
) -> list[list[float]]:
    gathered = Gathered()
    ckpt_path = how.pop("ckpt_path", None)
    settings = {"max_steps": 12, "limit_val_batches": 0, **how}
    stratagem.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=DDPStrategy(start_method="fork", timeout_s=200, **options),
        callbacks=[gathered],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        seed=3,
        **settings,
    ).fit(task, ckpt_path=ckpt_path)
    return gathered.losses


@pytest.mark.parametrize(
    "options", [POWER, LOCAL, HIERARCHY, {"ddp_comm_hook": "bf16"}], ids=["p", "l", "h", "b"]
)
def test_the_next_losses_of_every_rank_are_identical(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "saved"
    whole = fit(tmp_path, options, Task(path))
    resumed = fit(tmp_path, options, Task(), ckpt_path=path)
    # The checkpoint is written at the beginning of a step, so that its batch comes in both.
    assert [len(losses) for losses in resumed] == [7, 7]
    for before, after in zip(whole, resumed):
        assert after == before[5:]


class Parameters(stratagem.Callback):
    """Brings every rank's parameters, and what an evaluation sees of them, back."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_evaluation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        self.found.setdefault("seen", flat(module))

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        own = {"own": flat(module), "buffers": module.net[1].running_mean.clone(), **self.found}
        gathered = trainer.collectives.gather_objects(own)
        self.found = {key: torch.stack([each[key] for each in gathered if key in each]) for key in own}

    def state_dict(self) -> dict[str, Any]:
        return {"found": self.found} if "own" in self.found else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found = state.get("found", {})


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def test_evaluations_and_the_result_are_of_the_average_and_ranks_keep_their_own(tmp_path: Path) -> None:
    parameters, task = Parameters(), Task()
    trainer = stratagem.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(start_method="fork", timeout_s=200, **LOCAL),
        callbacks=[parameters],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        max_steps=5,
        val_check_interval=5,
        seed=3,
    )
    trainer.fit(task)
    own, seen = parameters.found["own"], parameters.found["seen"]
    assert float((own[0] - own[1]).abs().max()) > 1e-3
    for rank in (0, 1):
        torch.testing.assert_close(seen[rank], own.mean(0), atol=1e-7, rtol=0)
    torch.testing.assert_close(flat(task), own.mean(0), atol=1e-7, rtol=0)
    # What ranks counted of their own batches is rank 0's everywhere once it is read.
    assert torch.equal(parameters.found["buffers"][0], parameters.found["buffers"][1])
    assert torch.equal(task.net[1].running_mean, parameters.found["buffers"][0])


def test_another_number_of_ranks_goes_on_from_the_average(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    fit(tmp_path, LOCAL, Task(path))
    average, alone = Task(), Task()
    stratagem.Trainer(
        accelerator="cpu", devices=1, strategy="single", logger=False, enable_progress_bar=False
    ).validate(average, ckpt_path=path)
    fit(tmp_path, LOCAL, alone, devices=1, ckpt_path=path, max_steps=5)
    torch.testing.assert_close(flat(alone), flat(average), atol=0, rtol=0)
    losses = fit(tmp_path, LOCAL, Task(), devices=4, ckpt_path=path)
    assert [len(each) for each in losses] == [7, 7, 7, 7]


def test_what_powersgd_lost_is_shared_out_among_another_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    fit(tmp_path, POWER, Task(path))
    again = tmp_path / "again"
    fit(tmp_path, POWER, Task(again, step=5), devices=1, ckpt_path=path, max_steps=6)
    before, after = errors(path), errors(again)
    assert before.keys() == {0, 1}
    assert after.keys() == {0}
    name = "net.0.weight"
    torch.testing.assert_close(after[0][name], (before[0][name] + before[1][name]) / 2, atol=1e-7, rtol=0)
    assert float(after[0][name].abs().max()) > 1e-5


def errors(path: Path) -> dict[int, dict[str, Tensor]]:
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem.collectives.local import LocalCollectives

    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(str(path))
    found: dict[int, dict[str, Tensor]] = {}
    for key, info in reader.tensors.items():
        if "/error/" in key:
            target = torch.zeros(info.shape)
            reader.read({key: target})
            rank, _, name = key.removeprefix("ddp/rank").partition("/error/")
            found.setdefault(int(rank), {})[name] = target
    return found
