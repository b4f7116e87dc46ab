"""The CUDA accelerator; what needs a GPU is skipped by name where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from stratagem_cuda import CudaAccelerator, accelerator

from stratagem.errors import DeviceError
from stratagem.resolve.devices import devices_of

needs_gpu = pytest.mark.skipif(not CudaAccelerator().availability().ok, reason="no CUDA device")


class FakeNvml:
    """Stands for libnvidia-ml.so.1 on a machine with GPUs of these compute capabilities."""

    def __init__(self, *capabilities: tuple[int, int]) -> None:
        self.capabilities = capabilities
        self.opened = 0

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.capabilities)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor) -> int:
        major._obj.value, minor._obj.value = self.capabilities[handle.value - 1]
        return 0


def test_without_a_driver_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "load_driver", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    availability = CudaAccelerator().availability()
    assert (availability.ok, availability.reason) == (False, "no driver")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch is built with CUDA")
def test_a_build_without_cuda_is_distinguished_from_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "load_driver", FakeNvml)
    assert "is built without CUDA" in CudaAccelerator().availability().reason


def test_hidden_devices_are_distinguished_from_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "load_driver", FakeNvml)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides them" in CudaAccelerator().availability().reason
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert CudaAccelerator().availability().reason == "a driver, but no device: none found"


@pytest.mark.parametrize(
    ("capabilities", "visible", "refused"),
    [
        ([(7, 0)], None, "7.0"),
        ([(7, 5), (6, 1)], None, "7.5"),
        ([(7, 5), (8, 0)], None, None),
        ([(9, 0)], None, None),
        ([(7, 5), (9, 0)], "0", "7.5"),
        ([(7, 5), (9, 0)], "1,0", None),
        ([(7, 5)], "GPU-5f2a", None),
        ([], None, None),
    ],
)
def test_bfloat16_needs_ampere(capabilities, visible, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeNvml(*capabilities)
    monkeypatch.setattr(accelerator, "load_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    why = CudaAccelerator().refuse_precision("bf16-mixed")
    assert why is None if refused is None else f"GPUs have {refused}; use 16-mixed" in (why or "")
    assert driver.opened == 0
    assert CudaAccelerator().refuse_precision("16-mixed") is None


@pytest.mark.parametrize(("capability", "refused"), [((8, 0), True), ((8, 9), False), ((9, 0), False)])
def test_float8_needs_ada(
    capability: tuple[int, int], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "load_driver", lambda: FakeNvml(capability))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("float8", "float8-rowwise"):
        why = CudaAccelerator().refuse_precision(name)
        assert (
            "8.9 (Ada) or newer, and this machine's GPUs have 8.0; use bf16-mixed" in (why or "")
        ) == refused
    assert CudaAccelerator().refuse_precision("float8-rowwise-emulated") is None


def test_a_driver_that_fails_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeNvml((7, 0))
    driver.nvmlInit_v2 = lambda: 9
    monkeypatch.setattr(accelerator, "load_driver", lambda: driver)
    assert CudaAccelerator().refuse_precision("bf16-true") is None


def test_asking_initialises_nothing() -> None:
    program = (
        "import torch; from stratagem_cuda import CudaAccelerator; a = CudaAccelerator();"
        " a.availability(); a.device_count(); a.refuse_precision('bf16-mixed');"
        " raise SystemExit(torch.cuda.is_initialized())"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_more_devices_than_there_are() -> None:
    with pytest.raises(DeviceError, match=f"of cuda, but this machine has {torch.cuda.device_count()}; "):
        devices_of(CudaAccelerator(), 1000)


@pytest.mark.cuda
@needs_gpu
def test_a_device_is_set_up_and_measured() -> None:
    cuda = CudaAccelerator()
    device = cuda.device(cuda.device_count() - 1)
    cuda.set_up(device)
    assert torch.cuda.current_device() == device.index
    before = cuda.memory(device)["allocated_bytes"]
    block = torch.ones(2**20, dtype=torch.uint8, device=device)
    cuda.synchronize(device)
    assert cuda.memory(device)["allocated_bytes"] - before == block.numel()


@pytest.mark.cuda
@needs_gpu
def test_workers_can_be_forked_after_asking() -> None:
    program = (
        "import os, torch; from stratagem_cuda import CudaAccelerator; a = CudaAccelerator();"
        " a.availability(); a.refuse_precision('bf16-mixed'); pid = os.fork()\n"
        "if pid == 0: os._exit(int(torch.ones(1, device=a.device(0)).item() != 1))\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
