"""The accelerator for whatever torch.accelerator reports."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from stratagem_torch import TorchAccelerator
from torch.utils import backend_registration

REGISTERED = """
import torch, torch.distributed
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

class Module(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]
    def memory_allocated(self, device):
        return 7

_setup_privateuseone_for_python_backend("toy", backend_module=Module())
torch.distributed.Backend.register_backend("toyccl", lambda *args: None, devices=["toy"])
from stratagem_torch import TorchAccelerator
toy = TorchAccelerator()
availability = toy.availability()
assert (availability.ok, availability.reason) == (True, "1 toy device"), availability
assert (toy.autocast_type, toy.backend, toy.device_count()) == ("toy", "toyccl", 1)
assert toy.device(0) == torch.device("toy", 0)
toy.set_up(toy.device(0))
assert toy.refuse_precision("bf16-mixed") is None
assert toy.refuse_precision("16-mixed") == "the autocast of toy has no float16"
assert toy.refuse_precision("64-true") is None
assert toy.memory(toy.device(0)) == {"allocated_bytes": 7}
"""


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch can't register a backend from Python",
)
def test_an_out_of_tree_backend() -> None:
    # In a process of its own: a backend can't be unregistered.
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.accelerator.current_accelerator() is not None, reason="there is an accelerator")
def test_without_an_accelerator_the_reason_says_so() -> None:
    accelerator = TorchAccelerator()
    availability = accelerator.availability()
    assert (availability.ok, availability.reason) == (False, "PyTorch reports no accelerator")
    assert (accelerator.device_count(), accelerator.backend) == (0, "gloo")


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, device_type: str, count: int) -> None:
    """Make torch.accelerator report hardware that isn't there."""
    found = SimpleNamespace(type=device_type)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize("device_type", ["cuda", "mps"])
def test_devices_with_a_plugin_of_their_own_are_left_to_it(
    device_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_accelerator(monkeypatch, device_type, 1)
    availability = TorchAccelerator().availability()
    assert not availability.ok
    assert availability.reason == f"{device_type} has its own accelerator, from stratagem-{device_type}"


def test_xpu_with_devices_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, "xpu", 2)
    xpu = TorchAccelerator()
    assert (xpu.availability().ok, xpu.availability().reason) == (True, "2 xpu devices")
    assert (xpu.device(1), xpu.autocast_type, xpu.backend) == (torch.device("xpu", 1), "xpu", "xccl")
    assert xpu.refuse_precision("bf16-mixed") is None
    fake_accelerator(monkeypatch, "xpu", 0)
    assert TorchAccelerator().availability().reason == "PyTorch knows xpu, but finds no device"


def test_a_device_without_autocast_refuses_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, "fpga", 1)
    fpga = TorchAccelerator()
    assert fpga.refuse_precision("16-mixed") == "fpga has no autocast; use 32-true"
    assert fpga.refuse_precision("bf16-true") is None
    assert fpga.backend == "gloo"
