"""PJRT's client in this process: started once, with one kind of device and one number of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stratagem import DeviceError
from stratagem_xla import library


@dataclass(frozen=True)
class Client:
    """What was started."""

    kind: str
    """Kind of device, such as "TPU"."""
    devices: int
    spmd: bool
    """Whether one virtual device, `xla:0`, stands for all of them."""


_started: list[Client] = []


def start(kind: str, devices: int, *, spmd: bool) -> Client:
    """Start PJRT's client, or continue with it where it has been started alike.

    Args:
        kind: as PJRT_DEVICE names it.
        devices: how many this process is to drive; the CPU makes as many.
        spmd: make them one virtual device; not for a single one, which needs none.

    Raises:
        DeviceError: it has been started otherwise, has another number of devices, or began after a backward.
    """
    wanted = Client(kind, devices, spmd and devices > 1)
    if _started:
        if _started[0] != wanted:
            raise DeviceError(
                f"XLA was started with {_described(_started[0])} in this process, which can't be changed, and this "
                f"run asks for {_described(wanted)}: start it in another process"
            )
        _set_variables(wanted)
        return wanted
    _set_variables(wanted)
    os.environ.pop("XLA_USE_SPMD", None)  # it warns where it finds its own variable
    library.load()
    import torch_xla.runtime as xr

    if wanted.spmd:
        xr.use_spmd()
    _check_devices(wanted)
    _check_backward()
    _started.append(wanted)
    return wanted


def send_off() -> None:
    """Run what has been recorded, and leave XLA's generator where it is."""
    import torch_xla

    with keeping_random_state():
        torch_xla.sync()


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Leave XLA's generator where it is afterwards: every mark would move it on."""
    import torch_xla.core.xla_model as xm

    state = xm.get_rng_state()
    yield
    xm.set_rng_state(state)


def seed(rank: int) -> None:
    """Seed XLA's generator by torch's, which doesn't do it; otherwise on every rank."""
    import torch_xla

    torch_xla.manual_seed((torch.initial_seed() + rank) % 2**31)


def _set_variables(client: Client) -> None:
    os.environ["PJRT_DEVICE"] = client.kind
    if client.kind == "CPU":
        os.environ["CPU_NUM_DEVICES"] = str(client.devices)
    if client.spmd:
        os.environ["XLA_USE_SPMD"] = "1"


def _check_devices(wanted: Client) -> None:
    import torch_xla
    import torch_xla.runtime as xr

    try:
        torch_xla.device()
    except (OSError, RuntimeError) as error:
        raise DeviceError(f"PJRT can't open its {wanted.kind} device: {error}") from error
    there = xr.global_runtime_device_count()
    if wanted.spmd and there != wanted.devices:
        raise DeviceError(
            f"PJRT shows this process {there} {wanted.kind} devices, and the run asks for {wanted.devices}: "
            "the strategy drives all there are, so give devices=-1, or hide some of them (TPU_VISIBLE_CHIPS)"
        )


def _check_backward() -> None:
    """Autograd makes a queue per device at its first backward, and none for devices that come later."""
    tried = torch.ones(1, device="xla", requires_grad=True)
    try:
        tried.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    except RuntimeError as error:
        raise DeviceError(
            "this process ran a backward before XLA was started, and autograd knows no XLA device since then: launch "
            "the run first, or start it in another process"
        ) from error


def _described(client: Client) -> str:
    return f"{client.devices} {client.kind} device{'s' if client.devices != 1 else ''}"
