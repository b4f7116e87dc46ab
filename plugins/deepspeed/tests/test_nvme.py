"""Training at stage 3 with parameters and optimizer states in files, and checkpoints from and to elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed import DeepSpeedStrategy, builds
from stratagem_deepspeed.conformance import SMALL
from torch import Tensor, nn
from torch.optim import Optimizer

from stratagem import ConfigError
from stratagem.testing import StrategySubject
from stratagem.testing.recipe import Recipe
from stratagem.testing.trained import expect_parity

BUILD_TIMEOUT_S = 300
BUILD = "from stratagem_deepspeed import builds as b; exit(b._load(['AsyncIO'], announce=False) or None)"
FIRST, THEN = 3, 5
WIDTH = 1024
"""Two ranks' parts of a layer have over a megabyte: the engine keeps less than that in memory."""


@pytest.fixture(scope="module", autouse=True)
def _async_io(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where what reads and writes the drive isn't compiled, and can't be in a while."""
    try:
        builds.check(DeepSpeedStrategy(**on_nvme(tmp_path_factory.mktemp("drive"))).configuration)
    except ConfigError as error:
        pytest.skip(f"no AsyncIO: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", BUILD], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as build:
        try:
            said = build.communicate(timeout=BUILD_TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            os.killpg(build.pid, signal.SIGKILL)
            build.communicate()
            builds.remove_forgotten_locks()
            pytest.skip(f"no AsyncIO: compiling it takes more than {BUILD_TIMEOUT_S} s here")
    assert build.returncode == 0, said


def on_nvme(drive: Path, **options: Any) -> dict[str, Any]:
    places = {"offload_optimizer_device": "nvme", "offload_params_device": "nvme", "nvme_path": str(drive)}
    offload = {"stage": 3, "offload_optimizer": True, "offload_parameters": True}
    return {**SMALL, **offload, **places, "params_buffer_size": WIDTH * WIDTH, **options}


def wide(inputs: int, outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        # No world size divides the layer in the middle.
        layers = (nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH - 3), nn.Tanh())
        return nn.Sequential(*layers, nn.Linear(WIDTH - 3, outputs))


@dataclass(frozen=True)
class Wide(Recipe):
    steps: int | None = 8

    def net(self) -> nn.Module:
        return wide(6, 4)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [adamw(net)]


def adamw(net: nn.Module) -> Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


PIPELINED = {"zero_optimization": {"offload_optimizer": {"pipeline_read": True, "pipeline_write": True}}}


@pytest.mark.parametrize(
    "options",
    [{}, {"sub_group_size": 300_000}, {"config": PIPELINED, "optimizer_buffer_count": 12}],
    ids=["whole", "sub-groups", "pipelined"],
)
def test_trains_as_in_one_process(options: dict[str, Any], tmp_path: Path) -> None:
    subject = StrategySubject("deepspeed", options=on_nvme(tmp_path, **options), world_size=2, timeout_s=240)
    expect_parity(subject, Wide(), Wide(accumulate=2, max_norm=0.05), factor=5)
    for rank in (0, 1):
        files = {path.name for path in tmp_path.glob(f"**/rank{rank}/*.swp")}
        for kind in ("exp_avg-", "exp_avg_sq-", "_gradient_", "_param"):
            assert any(kind in name for name in files), f"rank {rank} has nothing of {kind!r} among {files}"


def batch(step: int) -> Tensor:
    return torch.randn(4, 33, generator=torch.Generator().manual_seed(step))


def loss_of(net: Any, x: Tensor) -> Tensor:
    return (net(x) - x[:, :5]).square().mean()


def uninterrupted() -> list[float]:
    net = wide(33, 5)
    optimizer, losses = adamw(net), []
    for step in range(FIRST + THEN):
        loss = loss_of(net, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def go(subject: StrategySubject, load: str | None, save: str | None) -> list[float]:
    """Train the first steps, or load and train what comes then; save in between. Run by every rank."""
    return subject.runtime().launch(_go, load, save, quiet=True)


def _go(runtime: Any, load: str | None, save: str | None) -> list[float]:
    module, optimizer = runtime.setup(wide(33, 5), adamw)
    losses = []
    if load is not None:
        runtime.load(load)
    for step in range(FIRST if load is not None else 0, FIRST + THEN):
        if step == FIRST and save is not None:
            runtime.save(save)
        loss = loss_of(module, batch(step).chunk(runtime.world_size)[runtime.rank])
        optimizer.zero_grad()
        runtime.backward(loss, module)
        optimizer.step()
        losses.append(float(runtime.all_reduce(loss.detach(), "mean")))
    return losses


def test_goes_on_from_and_to_elsewhere(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    nvme = StrategySubject("deepspeed", options=on_nvme(drive), timeout_s=240)
    subjects = {
        "single-1": StrategySubject("single"),
        "stage-3-2": StrategySubject("deepspeed", options={**SMALL, "stage": 3}, world_size=2),
        "nvme-1": nvme,
        "nvme-2": replace(nvme, world_size=2),
        "sub-groups-2": replace(nvme, options=on_nvme(drive, sub_group_size=300_000), world_size=2),
    }
    expected = uninterrupted()
    for name, subject in subjects.items():
        for losses in subject.run(go, None, str(tmp_path / name), timeout_s=240):
            assert losses == pytest.approx(expected, abs=1e-5), f"{name}, saving in between"
        # What a run has left on the drive is nothing that the next one may read.
        shutil.rmtree(drive)
        drive.mkdir()
    for reader, subject in subjects.items():
        for writer in subjects:
            if "nvme" not in reader + writer and "sub" not in reader + writer:
                continue
            for losses in subject.run(go, str(tmp_path / writer), None, timeout_s=240):
                assert losses == pytest.approx(expected[FIRST:], abs=1e-5), f"{writer} → {reader}"
