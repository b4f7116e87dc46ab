"""What of PyTorch has no public name yet: tests in plugins/sim/tests/test_torch_private.py."""

from __future__ import annotations

from types import ModuleType

import torch


def register_device_module(device_type: str, module: ModuleType) -> None:
    """Make `module` what `torch.get_device_module` returns for a device type, and an attribute of torch."""
    torch._register_device_module(device_type, module)  # type: ignore[no-untyped-call]  # torch has no types for it
