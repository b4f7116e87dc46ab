"""What of PyTorch has no public name does what we use it for."""

from __future__ import annotations

import subprocess
import sys


def test_a_device_module_is_found_by_its_name() -> None:
    # In a process of its own, for it can't be taken back.
    code = """
import torch
from types import ModuleType
from stratagem_sim.torch_private import register_device_module

torch.utils.rename_privateuse1_backend("sim")
module = ModuleType("torch.sim")
register_device_module("sim", module)
assert torch.get_device_module("sim") is module
assert torch.sim is module
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
