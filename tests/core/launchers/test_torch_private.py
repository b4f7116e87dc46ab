"""Torch still has what core's launchers use of its private names, with the same meaning."""

from __future__ import annotations

import subprocess
import sys

from stratagem.launchers import torch_private as private


def test_it_imports_no_torch():
    code = "import stratagem.launchers.torch_private, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_step_of_an_optimizer_imports_the_compiler():
    code = (
        "import sys, torch; p = torch.nn.Parameter(torch.ones(1)); p.grad = p.detach(); "
        "torch.optim.SGD([p], 0.1).step(); "
        f"sys.exit({private.COMPILER!r} not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
