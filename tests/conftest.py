"""What all tests share: no launcher's variables, one thread, no memory of installed plugins."""

import os
import re

import pytest
import torch

LAUNCHERS_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|MASTER_ADDR|MASTER_PORT)$"
    r"|(STRATAGEM|TORCHELASTIC|SLURM|OMPI|PMI|MPI|LSB|JSM)_"
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    # Many processes share few cores here, and sums in one thread are bitwise repeatable.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in list(os.environ):
        if LAUNCHERS_VARIABLES.match(name):
            monkeypatch.delenv(name)
