"""The grammar of `devices`."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.accelerators.indices import count_of, parse_devices
from stratagem.errors import DeviceError


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        (" 3 ", (0, 1, 2)),
        (-1, (0, 1, 2, 3)),
        ("-1", (0, 1, 2, 3)),
        ("auto", (0, 1)),
        ([0, 2], (0, 2)),
        ((0, 2), (0, 2)),
        ("0,2", (0, 2)),
        ("1, 3", (1, 3)),
        ("3,1", (3, 1)),
        ([0], (0,)),
        ("0,", (0,)),
        ("3,", (3,)),
        (0, ()),
        ("0", ()),
        ([], ()),
        ((), ()),
    ],
)
def test_meaning(devices: Any, indices: tuple[int, ...]) -> None:
    assert parse_devices(devices, count=4, default=2) == indices


@pytest.mark.parametrize(
    "devices",
    [
        *(True, 1.5, None, -2, {0}, [-1], [True], ["0"], [1.0]),
        *("-2", "a,b", "", ",", "1,,2", "0 1", "1.0", "-1,", "\N{SUPERSCRIPT TWO}"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(devices: Any) -> None:
    with pytest.raises(DeviceError) as error:
        parse_devices(devices, count=4, default=4)
    assert str(error.value).startswith(f"devices={devices!r} can't be understood; allowed are a number")


@pytest.mark.parametrize("devices", [[1, 1], "0,1,1"])
def test_a_device_named_twice(devices: Any) -> None:
    with pytest.raises(DeviceError, match="names device 1 more than once"):
        parse_devices(devices, count=4, default=4)


def test_all_of_none() -> None:
    with pytest.raises(DeviceError, match="devices=-1 asks for all devices, but this machine has none"):
        parse_devices(-1, count=0, default=0)


@pytest.mark.parametrize(
    ("devices", "count"), [(3, 3), ("2", 2), ([0, 5], 2), ("auto", None), (-1, None), ("-1", None)]
)
def test_how_many_are_asked_for(devices: Any, count: int | None) -> None:
    assert count_of(devices) == count
