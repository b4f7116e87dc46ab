"""Parses `devices`: 3, "3", -1, "auto", [0, 2], "0,2" and "0,"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stratagem.errors import DeviceError, short

MOST = 100_000
"""More devices than any machine has."""

_ALLOWED = "allowed are a number of devices (2), -1 for all, 'auto', or indices ([0, 2] or '0,2')"


def parse_devices(devices: Any, *, count: int, default: int) -> tuple[int, ...]:
    """Return the indices of the devices that `devices` asks for, one per process of a node.

    A number, as int or text, is how many: 3 and "3" are the first three. A list, or text with a comma, names devices:
    [3], "3," and "1, 3". -1 and "-1" are all devices, "auto" is the first `default` ones, and 0, "0" and [] are none.
    Only the accelerator knows whether these devices exist: see `devices_of`.

    Args:
        devices: the user's value.
        count: number of available devices, for -1.
        default: number of devices that "auto" stands for.

    Returns:
        Different indices in the user's order; empty for none.

    Raises:
        DeviceError: the value has no meaning, names a device twice, or asks for all devices of none.
    """
    if isinstance(devices, str):
        return _from_text(devices, count, default)
    if isinstance(devices, int) and not isinstance(devices, bool):
        return _first(devices, devices, count)
    if isinstance(devices, Sequence) and all(type(index) is int for index in devices):
        return _distinct(devices, tuple(devices))
    raise _nonsense(devices)


def count_of(devices: Any) -> int | None:
    """Return how many devices `devices` asks for; None if that depends on the machine.

    Raises:
        DeviceError: as `parse_devices` does.
    """
    if devices == "auto" or str(devices).strip() == "-1":
        return None
    return len(parse_devices(devices, count=0, default=0)) or None


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
