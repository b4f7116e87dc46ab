"""What every accelerator is to do."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import torch

from stratagem import Availability
from stratagem.sdk.selection import PRECISIONS
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import AcceleratorSubject

if TYPE_CHECKING:
    from stratagem import Accelerator

_DTYPES = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}


@check(world_sizes=(1,))
def check_made_without_arguments(subject: AcceleratorSubject) -> None:
    """It is made without arguments, has a name and a process group backend, and can be pickled."""
    accelerator: Accelerator = subject.load()()
    expect(bool(getattr(accelerator, "name", "")), "it has no name")
    expect(bool(accelerator.backend), "it names no backend for process groups")
    expect(
        type(pickle.loads(pickle.dumps(accelerator))) is type(accelerator), "it isn't the same once pickled"
    )


@check(world_sizes=(1,))
def check_availability(subject: AcceleratorSubject) -> None:
    """Availability and count are reported with a reason and without initialising a device."""
    available, count, initialised = subject.alone(_look)
    expect(isinstance(available, Availability), f"availability() returned {available!r}")
    expect(bool(available.reason.strip()), "availability() gives no reason")
    expect(
        available.ok == (count > 0),
        f"availability() says {available.ok}, and device_count() {count}",
    )
    expect(not initialised, f"looking for devices has initialised {', '.join(initialised)}")


def _look(subject: AcceleratorSubject) -> tuple[Availability, int, list[str]]:
    accelerator: Accelerator = subject.load()()
    available, count = accelerator.availability(), accelerator.device_count()
    here = torch.accelerator.current_accelerator()
    module = torch.get_device_module(here) if here is not None else None
    is_initialized = getattr(module, "is_initialized", None)
    initialised = [here.type] if here is not None and is_initialized is not None and is_initialized() else []
    return available, count, initialised


@check(world_sizes=(1,))
def check_indices(subject: AcceleratorSubject) -> None:
    """Every index that it has is a device; one that it hasn't is refused with a reason."""
    accelerator: Accelerator = subject.load()()
    count = accelerator.device_count()
    for index in range(count):
        expect(accelerator.check_index(index) is None, f"index {index} of {count} is refused")
        device = accelerator.device(index)
        expect(isinstance(device, torch.device), f"device({index}) is {device!r}")
    beyond = accelerator.check_index(10_000)
    expect(beyond is None or bool(beyond.strip()), "index 10000 is refused without a reason")
    expect(
        0 <= accelerator.default_devices() <= max(count, 1),
        f"default_devices() is {accelerator.default_devices()}, of {count}",
    )


def _there(subject: AcceleratorSubject) -> Accelerator:
    accelerator: Accelerator = subject.load()()
    available = accelerator.availability()
    if not available.ok:
        raise NotApplicable(f"there is no such device here: {available.reason}")
    return accelerator


@check(world_sizes=(1,))
def check_computes(subject: AcceleratorSubject) -> None:
    """Tensors are made on its device, computed with and synchronised, and their memory is reported in bytes."""
    _there(subject)
    subject.alone(_compute)


def _compute(subject: AcceleratorSubject) -> None:
    accelerator = _there(subject)
    device = accelerator.device(0)
    accelerator.set_up(device)
    value = torch.arange(6.0, device=device).reshape(2, 3)
    product = value @ value.T
    accelerator.synchronize(device)
    expect(product.device.type == device.type, f"a product is on {product.device}, and not on {device}")
    expect(product.tolist() == [[5.0, 14.0], [14.0, 50.0]], f"a product of matrices is {product.tolist()}")
    memory = accelerator.memory(device)
    wrong = {name: size for name, size in memory.items() if not (isinstance(size, int) and size >= 0)}
    expect(not wrong, f"memory() has {wrong}, which are no bytes")
    unnamed = [name for name in memory if not name.endswith("_bytes")]
    expect(not unnamed, f"memory() has {unnamed}: names say their unit, as allocated_bytes")


@check(world_sizes=(1,))
def check_precision_refusals(subject: AcceleratorSubject) -> None:
    """A precision is either refused with a reason, or its arithmetic works on the device."""
    _there(subject)
    subject.alone(_try_precisions)


def _try_precisions(subject: AcceleratorSubject) -> None:
    accelerator = _there(subject)
    device = accelerator.device(0)
    accelerator.set_up(device)
    for name in PRECISIONS:
        refusal = accelerator.refuse_precision(name)
        if refusal is not None:
            expect(len(refusal.split()) > 2, f"precision {name} is refused without a reason: {refusal!r}")
            continue
        ones = torch.ones(4, 4, device=device, dtype=_DTYPES.get(name, torch.float32))
        if name.endswith("mixed"):
            dtype = torch.bfloat16 if name.startswith("bf16") else torch.float16
            with torch.autocast(accelerator.autocast_type, dtype=dtype):
                product = ones @ ones
            expect(product.dtype == dtype, f"under {name} a product has {product.dtype}")
        else:
            product = ones @ ones
        expect(bool((product == 4).all()), f"under {name} a product of ones is {product[0, 0].item()}")
