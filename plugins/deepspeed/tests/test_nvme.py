"""Training at stage 3 with parameters and optimizer states in files, and checkpoints from and to elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed import DeepSpeedStrategy, builds
from stratagem_deepspeed.conformance import SMALL
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly, train
from stratagem_testing.workers import Workers, shared_workers
from torch import Tensor, nn
from torch.optim import Optimizer

from stratagem import Callback, ConfigError

BUILD_TIMEOUT_S = 300
BUILD = "import sys; from stratagem_deepspeed import builds as b; exit(b._load(sys.argv[1:], announce=False) or None)"
FIRST, THEN = 3, 5
WIDTH = 1056
"""Half of a layer in 16 bits has over a megabyte: the engine keeps less than that in memory. And what comes
after a layer doesn't begin where the system reads from files without more ado."""


@pytest.fixture(scope="module", autouse=True)
def _async_io(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where what reads and writes the drive isn't compiled, and can't be in a while."""
    compiled("AsyncIO", on_nvme(tmp_path_factory.mktemp("drive")))


@pytest.fixture
def _cpu_adam(tmp_path: Path) -> None:
    compiled("CPUAdam", on_nvme(tmp_path, config=ADAM))


def compiled(name: str, options: dict[str, Any]) -> None:
    try:
        builds.check(DeepSpeedStrategy(**options).configuration)
    except ConfigError as error:
        pytest.skip(f"no {name}: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, name], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as build:
        try:
            said = build.communicate(timeout=BUILD_TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            os.killpg(build.pid, signal.SIGKILL)
            build.communicate()
            builds.remove_forgotten_locks()
            pytest.skip(f"no {name}: compiling it takes more than {BUILD_TIMEOUT_S} s here")
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


class Files(Callback):
    """Which files of this rank there are when training ends: later there are none."""

    def __init__(self, drive: str) -> None:
        self.drive = drive
        self.names: set[str] = set()

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.names = {path.name for path in Path(self.drive).glob(f"**/rank{trainer.global_rank}/*.swp")}


def train_and_list(subject: StrategySubject, recipe: Recipe) -> tuple[Trained, set[str]]:
    files = Files(subject.options["nvme_path"])
    return train(subject, recipe, [files]), files.names


PIPELINED = {"zero_optimization": {"offload_optimizer": {"pipeline_read": True, "pipeline_write": True}}}
ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}}
CLIPPED = Wide(accumulate=2, max_norm=0.05)


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        ({}, CLIPPED),
        ({}, Wide(precision="bf16-mixed")),
        ({"sub_group_size": 300_000}, CLIPPED),
        ({"config": PIPELINED, "optimizer_buffer_count": 12}, CLIPPED),
    ],
    ids=["whole", "bf16", "sub-groups", "pipelined"],
)
def test_trains_as_in_one_process(options: dict[str, Any], recipe: Recipe, tmp_path: Path) -> None:
    expect_on_the_drive(on_nvme(tmp_path, **options), recipe)


@dataclass(frozen=True)
class Resting(Wide):
    """Steps at a rate of zero."""

    steps: int | None = 2
    precision: str = "bf16-mixed"

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=0.0)]


def test_bf16_rounds_no_weights(tmp_path: Path) -> None:
    subject = StrategySubject("deepspeed", options=on_nvme(tmp_path), world_size=2, timeout_s=240)
    for trained, _ in subject.run(train_and_list, Resting()):
        for name, value in Resting().net().state_dict().items():
            assert torch.equal(trained.weights[name], value), name


@pytest.mark.usefixtures("_cpu_adam")
def test_the_engines_own_adam_steps_what_is_on_the_drive(tmp_path: Path) -> None:
    expect_on_the_drive(on_nvme(tmp_path, config=ADAM), Wide())


def expect_on_the_drive(options: dict[str, Any], recipe: Recipe) -> None:
    subject = StrategySubject("deepspeed", options=options, world_size=2, timeout_s=240)
    ranks, files = zip(*subject.run(train_and_list, recipe))
    expect_same(ranks, plainly(recipe, 2), 5 * subject.tolerance(recipe.precision))
    for rank, names in enumerate(files):
        for kind in ("exp_avg-", "exp_avg_sq-", "_gradient_", "_param"):
            assert any(kind in name for name in names), f"rank {rank} has nothing of {kind!r} among {names}"
    assert not list(Path(options["nvme_path"]).iterdir()), "what a run has had goes with it"


def test_two_runs_on_one_drive(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    subject = StrategySubject("deepspeed", options=on_nvme(drive), world_size=2, folder=str(tmp_path))
    others = Workers()
    try:
        with ThreadPoolExecutor(2) as pool:
            runs = [
                pool.submit(workers.run, 2, side_by_side, subject, number, timeout_s=240)
                for number, workers in enumerate((shared_workers(), others))
            ]
            results = [run.result() for run in runs]
    finally:
        others.close()
    for number, ranks in enumerate(results):
        expected = uninterrupted(1000 * number)
        for losses in ranks:
            assert losses == pytest.approx(expected, abs=1e-5), f"run {number}"
    assert not list(drive.iterdir())


def side_by_side(subject: StrategySubject, number: int) -> list[float]:
    """Train, and wait in the middle for the other run to come as far. Run by every rank."""

    def meet(runtime: Any) -> None:
        Path(subject.folder, f"run{number}-{runtime.rank}").touch()
        began = time.monotonic()
        while len(list(Path(subject.folder).glob("run?-?"))) < 4:
            assert time.monotonic() - began < 200, "the other run doesn't come"
            time.sleep(0.05)

    return subject.runtime().launch(_go, None, None, 1000 * number, meet, quiet=True)


def batch(step: int) -> Tensor:
    return torch.randn(4, 33, generator=torch.Generator().manual_seed(step))


def loss_of(net: Any, x: Tensor) -> Tensor:
    return (net(x) - x[:, :5]).square().mean()


def uninterrupted(shift: int = 0) -> list[float]:
    net = wide(33, 5)
    optimizer, losses = adamw(net), []
    for step in range(FIRST + THEN):
        loss = loss_of(net, batch(shift + step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def go(subject: StrategySubject, load: str | None, save: str | None) -> list[float]:
    """Train the first steps, or load and train what comes then; save in between. Run by every rank."""
    return subject.runtime().launch(_go, load, save, quiet=True)


def _go(runtime: Any, load: str | None, save: str | None, shift: int = 0, meet: Any = None) -> list[float]:
    module, optimizer = runtime.setup(wide(33, 5), adamw)
    losses = []
    if load is not None:
        runtime.load(load)
    for step in range(FIRST if load is not None else 0, FIRST + THEN):
        if step == FIRST and save is not None:
            runtime.save(save)
        if step == FIRST and meet is not None:
            meet(runtime)
        loss = loss_of(module, batch(shift + step).chunk(runtime.world_size)[runtime.rank])
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
    for reader, subject in subjects.items():
        for writer in subjects:
            if "nvme" not in reader + writer and "sub" not in reader + writer:
                continue
            for losses in subject.run(go, str(tmp_path / writer), None, timeout_s=240):
                assert losses == pytest.approx(expected[FIRST:], abs=1e-5), f"{writer} → {reader}"
