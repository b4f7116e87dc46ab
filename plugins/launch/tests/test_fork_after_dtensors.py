"""Ranks that are forked from a process that has used DTensors run, and let go of none of its process groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

import stratagem


def use_dtensors():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = DeviceMesh.from_group([dist.new_group([0])], "cpu", mesh=[0], mesh_dim_names=("tensor",))
    tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    tensor + tensor
    dist.destroy_process_group()


def train(runtime):
    module = nn.Linear(4, 2)
    module, optimizer = runtime.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    runtime.backward(module(torch.ones(3, 4) * (1 + runtime.rank)).sum())
    optimizer.step()
    return runtime.world_size


if __name__ == "__main__":
    if sys.argv[1] == "by hand":
        use_dtensors()
    else:
        print(stratagem.Runtime("shard=auto", accelerator="cpu", devices=1).launch(train, quiet=True))
    runtime = stratagem.Runtime("shard=auto", "cpu", 2, strategy_options={"start_method": "fork"})
    print(runtime.launch(train, quiet=True))
"""


@pytest.mark.parametrize("before", ["by hand", "a run"])
def test_forked_ranks_end(tmp_path: Path, before: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, before], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"
