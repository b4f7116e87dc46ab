"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import subprocess
import sys

import torch
from stratagem_torch import torch_private as private


def test_the_name_of_a_vendors_device_type():
    assert private.backend_out_of_tree() == "privateuseone"
    code = (
        "import torch; from stratagem_torch.torch_private import backend_out_of_tree; "
        "torch.utils.rename_privateuse1_backend('npu'); assert backend_out_of_tree() == 'npu'"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_public_returns_it():
    assert not hasattr(torch.utils, "get_privateuse1_backend_name"), "use it"
