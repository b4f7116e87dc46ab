"""Checks for every accelerator."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stratagem import Availability
from stratagem.sdk.selection import PRECISIONS
from stratagem.sdk.tensors import has_events
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import AcceleratorSubject
from stratagem_testing.workers import RankError

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
        type(pickle.loads(pickle.dumps(accelerator))) is type(accelerator), "it isn't the same after pickling"
    )


@check(world_sizes=(1,))
def check_availability(subject: AcceleratorSubject) -> None:
    """Availability and the number of devices are reported with a reason, without initializing a device."""
    available, count, initialised = subject.alone(_look)
    expect(isinstance(available, Availability), f"availability() returned {available!r}")
    expect(bool(available.reason.strip()), "availability() gives no reason")
    expect(
        available.ok == (count > 0),
        f"availability() says {available.ok}, but device_count() {count}",
    )
    expect(not initialised, f"looking for devices has initialized {', '.join(initialised)}")


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
    """Each of its indices is a device. If it refuses another index, it gives a reason."""
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
    """Tensors can be made on its device, computed with and synchronized, and memory is reported in bytes."""
    _there(subject)
    subject.alone(_compute)


def _compute(subject: AcceleratorSubject) -> None:
    accelerator = _there(subject)
    device = accelerator.device(0)
    accelerator.set_up(device)
    value = torch.arange(6.0, device=device).reshape(2, 3)
    product = value @ value.T
    accelerator.synchronize(device)
    expect(product.device.type == device.type, f"a product is on {product.device}, not on {device}")
    expect(product.tolist() == [[5.0, 14.0], [14.0, 50.0]], f"a product of matrices is {product.tolist()}")
    memory = accelerator.memory(device)
    wrong = {name: size for name, size in memory.items() if not (isinstance(size, int) and size >= 0)}
    expect(not wrong, f"memory() has {wrong}, which are not numbers of bytes")
    unnamed = [name for name in memory if not name.endswith("_bytes")]
    expect(not unnamed, f"memory() has {unnamed}: names must have their unit, such as allocated_bytes")


@check(world_sizes=(1,))
def check_precision_refusals(subject: AcceleratorSubject) -> None:
    """A precision is refused with a reason, or its arithmetic works on the device."""
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


def _with_streams(subject: AcceleratorSubject, function: Callable[[AcceleratorSubject], None]) -> None:
    """Call a function in a separate process, if the device exists and has streams."""
    _there(subject)
    try:
        subject.alone(function)
    except RankError as error:
        if isinstance(error.error, NotApplicable):
            raise error.error from None
        raise


def _asynchronous(subject: AcceleratorSubject) -> torch.device:
    """Return the device, after making it the current one.

    Raises:
        NotApplicable: the device has no streams.
    """
    accelerator = _there(subject)
    device = accelerator.device(0)
    accelerator.set_up(device)
    if not has_events(device):
        raise NotApplicable(f"{device.type} has no streams that torch.accelerator supports")
    if torch.Stream(device=device) == torch.accelerator.current_stream(device):
        raise NotApplicable(f"{device.type} has only one stream")
    return device


@check(world_sizes=(1,))
def check_synchronizes(subject: AcceleratorSubject) -> None:
    """After `synchronize`, copies to and from the device are complete, and host memory may be changed."""
    _with_streams(subject, _copy_without_waiting)


def _copy_without_waiting(subject: AcceleratorSubject) -> None:
    accelerator, device = _there(subject), _asynchronous(subject)
    source = torch.ones(1 << 16).pin_memory()
    value = source.to(device, non_blocking=True)
    accelerator.synchronize(device)
    source.zero_()
    expect(
        bool((value == 1).all()), "a copy to the device reads host memory after synchronize() has returned"
    )
    result = torch.zeros(1 << 16).pin_memory()
    result.copy_(value * 2, non_blocking=True)
    accelerator.synchronize(device)
    expect(bool((result == 2).all()), "a copy to the host isn't complete when synchronize() has returned")


@check(world_sizes=(1,))
def check_streams(subject: AcceleratorSubject) -> None:
    """A stream that waits for another one, or for its event, reads what the other has written."""
    _with_streams(subject, _wait_between_streams)


def _wait_between_streams(subject: AcceleratorSubject) -> None:
    device = _asynchronous(subject)
    main, side = torch.accelerator.current_stream(device), torch.Stream(device=device)
    value = _squared(torch.ones(256, 256, device=device))
    side.wait_stream(main)
    with side:
        doubled = value * 2
    side.synchronize()  # before any stream waits for another one
    with side:
        total = doubled.sum().item()
    expect(total == 2.0 * 256 * 256, f"a stream has waited for another one, but reads the sum {total}")
    with side:
        value = _squared(torch.ones(256, 256, device=device))
        event = side.record_event()
    main.wait_event(event)
    value.record_stream(main)
    total = value.sum().item()
    expect(total == 256 * 256, f"a stream has waited for an event, but reads the sum {total}")


def _squared(value: torch.Tensor) -> torch.Tensor:
    """Return the matrix after slow work that doesn't change a matrix of ones."""
    for _ in range(8):
        value = value @ value / len(value)
    return value


@check(world_sizes=(1,))
def check_recorded_memory(subject: AcceleratorSubject) -> None:
    """Memory that another stream uses (`record_stream`) isn't reused before that stream has finished."""
    _with_streams(subject, _free_while_it_is_read)


def _free_while_it_is_read(subject: AcceleratorSubject) -> None:
    device = _asynchronous(subject)
    main, side = torch.accelerator.current_stream(device), torch.Stream(device=device)
    sums = []
    for _ in range(4):
        value = torch.ones(1 << 16, device=device)
        busy = torch.ones(512, 512, device=device)
        side.wait_stream(main)
        with side:
            busy = _squared(busy)  # keep this stream busy, so that the other one runs ahead
            sums.append((value + busy[0, 0]).sum())
        value.record_stream(side)
        busy.record_stream(side)
        del value, busy
        torch.full((1 << 16,), 7.0, device=device).sum().item()
    main.wait_stream(side)
    found = [each.item() for each in sums]
    expect(found == [2.0 * (1 << 16)] * 4, f"sums of memory that was freed while it was read are {found}")


@check(world_sizes=(1,))
def check_event_times(subject: AcceleratorSubject) -> None:
    """Events of a stream complete in order, measure times, and are complete after waiting for them."""
    _with_streams(subject, _time_by_events)


def _time_by_events(subject: AcceleratorSubject) -> None:
    device = _asynchronous(subject)
    stream = torch.accelerator.current_stream(device)
    value = torch.ones(256, 256, device=device)
    events = []
    for count in (0, 1, 16):
        for _ in range(count):
            value = value @ value / 256
        events.append(torch.Event(device, enable_timing=True))
        events[-1].record(stream)
    events[-1].synchronize()
    expect(
        all(event.query() for event in events), "an event is complete, but an earlier one of its stream isn't"
    )
    short, long = (events[0].elapsed_time(end) for end in events[1:])
    expect(0 <= short < long, f"one product takes {short} ms, and 17 take {long} ms")
