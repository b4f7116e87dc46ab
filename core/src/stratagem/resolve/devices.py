"""What `devices` means: 3, "3", -1, "auto", [0, 2], "0,2" and "0,"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stratagem.errors import DeviceError, short

if TYPE_CHECKING:
    import torch

    from stratagem.accelerators.base import Accelerator
    from stratagem.environments.base import Environment
    from stratagem.strategies.base import Strategy

MOST = 100_000
"""More devices than any machine has."""

_ALLOWED = "allowed are a number of devices (2), -1 for all, 'auto', or indices ([0, 2] or '0,2')"


def parse_devices(devices: Any, *, count: int, default: int) -> tuple[int, ...]:
    """Return the indices of the devices that `devices` asks for, one per process of a node.

    A number, as int or text, is how many: 3 and "3" are the first three. A list, or text with a
    comma, names them: [3], "3," and "1, 3". -1 and "-1" are all; "auto" is `default` of them; 0, "0"
    and [] are none. Whether there are such devices is the accelerator's to say: see `devices_of`.

    Args:
        devices: the user's value.
        count: number of devices there are, for -1.
        default: number of devices that "auto" stands for.

    Returns:
        Different indices in the order asked for; empty for none.

    Raises:
        DeviceError: nonsense, a device named twice, or all devices of none.
    """
    if isinstance(devices, str):
        return _from_text(devices, count, default)
    if isinstance(devices, int) and not isinstance(devices, bool):
        return _first(devices, devices, count)
    if isinstance(devices, Sequence) and all(type(index) is int for index in devices):
        return _distinct(devices, tuple(devices))
    raise _nonsense(devices)


def count_of(devices: Any) -> int | None:
    """Return how many devices `devices` asks for; None where that depends on the machine.

    Raises:
        DeviceError: as `parse_devices` does.
    """
    if devices == "auto" or str(devices).strip() == "-1":
        return None
    return len(parse_devices(devices, count=0, default=0)) or None


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
    devices: Any,
    parallel: Sequence[torch.device] | None,
    accelerator: Accelerator,
    environment: Environment,
) -> tuple[int, ...]:
    """Return the indices of this node's devices.

    Args:
        devices: the user's value.
        parallel: those that the strategy was made with, which win.
        accelerator: counts its devices.
        environment: "auto" is a device for each process on this node that it made.

    Raises:
        DeviceError: as `devices_of` does, or there is none.
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
    """Return the devices that a strategy object was made with; None where it leaves them to the run.

    Raises:
        DeviceError: `parallel_devices` holds something else than devices, or some twice.
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
    """Return the type of given devices, as "cuda"; None where none were given."""
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


def _from_text(devices: str, count: int, default: int) -> tuple[int, ...]:
    text = devices.strip()
    if text == "auto":
        return tuple(range(default))
    if len(max(re.split(r"\D+", text), key=len)) > len(str(MOST)):
        raise _too_many(devices)
    if re.fullmatch(r"-?[0-9]+", text):
        return _first(devices, int(text), count)
    if re.fullmatch(r"\d+\s*(,\s*\d+\s*)*,?", text, re.ASCII):
        return _distinct(devices, tuple(int(part) for part in text.split(",") if part.strip()))
    raise _nonsense(devices)


def _first(devices: Any, number: int, count: int) -> tuple[int, ...]:
    if number < -1:
        raise _nonsense(devices)
    if number == -1 and count == 0:
        raise DeviceError(f"devices={devices!r} asks for all devices, but this machine has none")
    if number > MOST:
        raise _too_many(devices)
    return tuple(range(count if number == -1 else number))


def _distinct(devices: Any, indices: tuple[int, ...]) -> tuple[int, ...]:
    if any(index < 0 for index in indices):
        raise _nonsense(devices)
    if max(indices, default=0) > MOST:
        raise _too_many(devices)
    twice = sorted(index for index, count in Counter(indices).items() if count > 1)
    if twice:
        raise DeviceError(f"devices={devices!r} names device {twice[0]} more than once; name each once")
    return indices


def _too_many(devices: Any) -> DeviceError:
    return DeviceError(f"devices={short(devices)} is beyond what any machine has; {_ALLOWED}")


def _nonsense(devices: Any) -> DeviceError:
    return DeviceError(f"devices={short(devices)} can't be understood; {_ALLOWED}")
