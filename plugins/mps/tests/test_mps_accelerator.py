"""The MPS accelerator; what needs the GPU is skipped by name elsewhere."""

from __future__ import annotations

import sys

import pytest
import torch
from stratagem_mps import MpsAccelerator

from stratagem.errors import DeviceError
from stratagem.resolve.devices import devices_of

needs_mps = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no Apple silicon GPU")


@pytest.mark.skipif(sys.platform == "darwin", reason="this is macOS")
def test_elsewhere_the_reason_says_so() -> None:
    availability = MpsAccelerator().availability()
    assert (availability.ok, availability.reason) == (False, "only on macOS")
    assert MpsAccelerator().device_count() == 0


@pytest.mark.parametrize(
    ("built", "there", "reason"),
    [(False, False, "is built without MPS"), (True, False, "no Apple silicon GPU"), (True, True, "1 device")],
)
def test_reasons_on_macos(built: bool, there: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there)
    availability = MpsAccelerator().availability()
    assert availability.ok == there
    assert reason in availability.reason


def test_there_is_one_device_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices_of(MpsAccelerator(), "auto") == (0,)
    with pytest.raises(DeviceError, match="asks for 2 devices of mps, but this machine has 1"):
        devices_of(MpsAccelerator(), 2)


def test_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    mps = MpsAccelerator()
    assert "no float64" in (mps.refuse_precision("64-true") or "")
    assert "macOS 14" in (mps.refuse_precision("bf16-mixed") or "")
    assert mps.refuse_precision("16-mixed") is None
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: True)
    assert mps.refuse_precision("bf16-true") is None


@needs_mps
def test_tensors_live_on_the_gpu() -> None:
    mps = MpsAccelerator()
    block = torch.ones(2**20, device=mps.device(0))
    mps.synchronize(block.device)
    assert mps.memory(block.device)["allocated_bytes"] >= 4 * 2**20
