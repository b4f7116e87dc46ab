"""What is converted, what is left alone, and what comes back as itself."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from stratagem.precision.convert import convert_module, convert_tensors, default_dtype

HALF, WIDE = torch.float16, torch.ones(2)
WHOLE = torch.ones(2, dtype=torch.int64)
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str = "a"
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.made + 1)


def test_the_default_dtype_is_given_back() -> None:
    def fails() -> None:
        with default_dtype(torch.float64):
            assert torch.zeros(1).dtype == torch.float64
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.zeros(1).dtype == torch.float32


def test_a_modules_floating_point_tensors_are_converted_in_place() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("phase", torch.ones(1, dtype=torch.complex64))
    weight = module.weight
    assert convert_module(module, HALF) is module
    assert module.weight is weight
    dtypes = {name: value.dtype for name, value in module.state_dict().items()}
    assert dtypes == {
        "weight": HALF,
        "bias": HALF,
        "running_mean": HALF,
        "running_var": HALF,
        "num_batches_tracked": torch.int64,
        "phase": torch.complex64,
    }


@pytest.mark.parametrize(
    "batch",
    [
        (WIDE, WHOLE),
        [WHOLE, {"x": WIDE}],
        Pair(WIDE, 3),
        {"x": (WIDE,), "y": "text"},
        OrderedDict(x=WIDE, y=WHOLE),
        Frozen(WIDE),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_containers_are_rebuilt_as_what_they_were(batch: Any) -> None:
    converted = convert_tensors(batch, HALF)
    assert type(converted) is type(batch)
    found = str(converted)
    assert "float16" in found
    assert found.replace(", dtype=torch.float16", "") == str(batch)
    # Where nothing changes, it is the same object.
    assert convert_tensors(converted, HALF) is converted


def test_what_has_no_floating_point_tensor_is_returned_itself() -> None:
    for batch in (WHOLE, [WHOLE], {"x": WHOLE}, Frozen(WHOLE), "text", None, Frozen, object()):
        assert convert_tensors(batch, HALF) is batch


def test_a_mapping_keeps_what_it_carries_beside_its_items() -> None:
    counted = defaultdict(list, x=WIDE)
    converted = convert_tensors(counted, HALF)
    assert converted.default_factory is list
    assert counted["x"].dtype == torch.float32
    assert convert_tensors(MappingProxyType({"x": WIDE}), HALF)["x"].dtype == HALF


class Encoding(OrderedDict[str, Any]):
    """Carries something that isn't an item."""

    origin = "none"


def test_a_custom_mapping_keeps_its_attributes() -> None:
    encoding = Encoding(x=WIDE)
    encoding.origin = "here"
    converted = convert_tensors(encoding, HALF)
    assert (type(converted), converted.origin, converted["x"].dtype) == (Encoding, "here", HALF)
    assert encoding["x"] is WIDE


def test_a_dataclass_is_not_made_again() -> None:
    converted = convert_tensors(Frozen(WIDE), HALF)
    assert (converted.x.dtype, converted.made, converted.name) == (HALF, 1, "a")
