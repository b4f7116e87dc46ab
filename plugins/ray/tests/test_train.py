"""`Runtime` in the loop of a `TorchTrainer` of Ray Train, set up as docs/places/ray.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray.train.torch", reason="needs ray[train]: make test-ray")
pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]

STEPS = 4
LOOP = f"""
import json
import torch


def losses(runtime):
    torch.manual_seed(3)
    x, net = torch.randn(8, 4), torch.nn.Linear(4, 3)
    model, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    mine = x[runtime.rank :: runtime.world_size]
    found = []
    for _ in range({STEPS}):
        optimizer.zero_grad()
        loss = (model(mine) ** 2).mean()
        runtime.backward(loss)
        optimizer.step()
        found.append(runtime.all_reduce(loss.detach(), "mean").item())
    return found


def train_loop_per_worker(config):
    import ray.train
    import stratagem

    found = stratagem.Runtime("ddp", accelerator="cpu").launch(losses)
    if ray.train.get_context().get_world_rank() == 0:
        with open(config["path"], "w") as file:
            json.dump(found, file)
    ray.train.report({{"loss": found[-1]}})


def main(path, storage):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from stratagem_ray.train import NoProcessGroup

    ray.init(address="local", num_cpus=3, include_dashboard=False)
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={{"path": path}},
        torch_config=NoProcessGroup(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage),
    )
    trainer.fit()
    ray.shutdown()
"""


def test_the_loop_of_a_torch_trainer_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    program = f"import loop; loop.main({str(tmp_path / 'said.json')!r}, {str(tmp_path / 'storage')!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=380
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "said.json").read_text())
    assert found == pytest.approx(alone(), abs=1e-6)


def alone() -> list[float]:
    """The same in one process, in plain PyTorch."""
    torch.manual_seed(3)
    x, net = torch.randn(8, 4), torch.nn.Linear(4, 3)
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
