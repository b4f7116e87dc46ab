"""Chooses a run's devices on this node: those that `devices` or the strategy asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stratagem.accelerators.indices import parse_devices
from stratagem.errors import DeviceError, short

if TYPE_CHECKING:
    import torch

    from stratagem.accelerators.base import Accelerator
    from stratagem.environments.base import Environment
    from stratagem.strategies.base import Strategy


def devices_of(accelerator: Accelerator, devices: Any, default: int | None = None) -> tuple[int, ...]:
    """Return the indices that `devices` asks for among those of `accelerator`.

    Args:
        accelerator: counts its devices, and says which can be used.
        devices: the user's value, as for `parse_devices`.
        default: number of devices that "auto" stands for; None leaves it to the accelerator.

    Raises:
        DeviceError: as `parse_devices` does, or the accelerator can't use one of them.
    """
    count = accelerator.device_count()
    automatic = accelerator.default_devices() if default is None else default
    indices = parse_devices(devices, count=count, default=automatic)
    if not accelerator.has_distinct_devices and indices != tuple(range(len(indices))):
        raise DeviceError(
            f"devices={devices!r} names devices of {accelerator.name}, which has none to choose among: say how many, "
            f"as devices={len(indices)}"
        )
    for index in indices:
        why = accelerator.check_index(index)
        if why is not None:
            asked = f"{len(indices)} devices" if indices == tuple(range(len(indices))) else f"device {index}"
            raise DeviceError(
                f"devices={devices!r} asks for {asked} of {accelerator.name}, but {why}; ask for fewer or"
                " others: `stratagem accelerators` shows what there is"
            )
    return indices


def node_devices(
    devices: Any, parallel: Sequence[torch.device] | None, accelerator: Accelerator, environment: Environment
) -> tuple[int, ...]:
    """Return the indices of this node's devices.

    Args:
        devices: the user's value.
        parallel: the strategy's `parallel_devices`, which override `devices`.
        accelerator: counts its devices.
        environment: if it has made the processes on this node, "auto" is one device for each.

    Raises:
        DeviceError: as `devices_of`, or `devices` asks for none.
    """
    if parallel:
        return tuple(range(len(parallel)))
    local = environment.local_world_size
    indices = devices_of(accelerator, devices, local if environment.creates_processes and local > 1 else None)
    if not indices:
        raise DeviceError(
            f"devices={devices!r} asks for no device, and a run needs one: choose at least 1, or 'auto'"
        )
    return indices


def given_devices(strategy: Strategy) -> list[torch.device] | None:
    """Return the `parallel_devices` of a strategy object; None if it has none.

    Raises:
        DeviceError: `parallel_devices` has something other than devices, or devices of several types.
    """
    given = strategy.parallel_devices
    if not given:
        return None
    import torch

    try:
        devices = [torch.device(each) for each in given]
    except (TypeError, RuntimeError) as error:
        raise DeviceError(
            f"parallel_devices={short(given)} can't be understood: give torch.device objects, one per process"
        ) from error
    if len({device.type for device in devices}) > 1:
        raise DeviceError(f"parallel_devices={short(given)} are of several types: give devices of one")
    return devices


def torch_device_type(devices: Sequence[torch.device] | None) -> str | None:
    """Return the type of given devices, such as "cuda"; None if none are given."""
    return devices[0].type if devices else None


def refuse_other_devices(devices: Sequence[torch.device] | None, accelerator: Accelerator) -> None:
    """Refuse devices that aren't of the accelerator, or that it can't use.

    Raises:
        DeviceError: names the device.
    """
    for device in devices or ():
        own = accelerator.device(0).type
        if device.type != own:
            raise DeviceError(
                f"the strategy was given the device {str(device)!r}, but the run is on {accelerator.name}, whose "
                f"devices are {own!r}: give others, or another accelerator"
            )
        why = accelerator.check_index(device.index or 0)
        if why is not None:
            raise DeviceError(
                f"the strategy was given the device {str(device)!r} of {accelerator.name}, but {why}; "
                "`stratagem accelerators` shows what there is"
            )
