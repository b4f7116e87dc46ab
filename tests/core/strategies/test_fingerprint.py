"""Fingerprints differ where values do."""

from __future__ import annotations

import pytest
import torch

from stratagem.strategies.fingerprint import fingerprint, number_of

CPU = torch.device("cpu")


def of(*tensors: torch.Tensor) -> int:
    return int(fingerprint(tensors, CPU))


@pytest.mark.parametrize("numel", [1, 7, 1024, 3000, 2**16 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.bool])
def test_any_single_bit_counts(numel: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = of(tensor)
    assert of(tensor.clone()) == before
    size = tensor.element_size()
    raw = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).view(torch.uint8)
    for place in sorted({0, size - 1, len(raw) // 2, len(raw) - 1}):
        raw[place] ^= 1
        assert of(tensor) != before
        raw[place] ^= 1
    assert of(tensor) == before


def test_the_place_of_a_value_and_the_order_of_tensors_count() -> None:
    a, b = torch.arange(4.0), torch.arange(4.0).flip(0)
    assert of(a) != of(b)
    assert of(a, b) != of(b, a)
    big = torch.arange(2.0**17)
    assert of(big) != of(big.roll(1))
    assert of(big, big + 1) != of(big + 1, big)
    for width in (32, 768, 1000, 1024, 4096):
        rows = torch.arange(2.0**18)[: 2**18 // width * width].view(-1, width)
        assert of(rows) != of(rows.flip(0)), f"the order of rows of {width}"


def test_layout_in_memory_does_not_count() -> None:
    tensor = torch.randn(30, 50)
    assert of(tensor) == of(tensor.t().contiguous().t())


def test_nothing_and_empty_tensors() -> None:
    assert of() == of(torch.empty(0)) == 0
    assert of(torch.tensor(float("nan"))) == of(torch.tensor(float("nan")))


def test_values_that_are_no_tensors() -> None:
    assert number_of([{"lr": 0.1}]) == number_of([{"lr": 0.1}]) != number_of([{"lr": 0.2}])
