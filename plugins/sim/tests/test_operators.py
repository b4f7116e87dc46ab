"""Operators whose results differ between PyTorch's meta kernels, its fused ones and the CPU's give the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stratagem_sim import count_synchronizations
from stratagem_sim.build import is_built
from torch import Tensor, nn

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(16),
    "layer without parameters": lambda: nn.LayerNorm(16, elementwise_affine=False),
    "group": lambda: nn.GroupNorm(2, 4),
    "batch": lambda: nn.BatchNorm1d(4),
}
CELLS: dict[str, Callable[..., nn.Module]] = {"lstm": nn.LSTM, "gru": nn.GRU}


def gradients(module: nn.Module, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return the output and all gradients of a copy of a module."""
    on = copy.deepcopy(module).to(device, dtype)
    x = torch.linspace(-1, 2, 128).sin().reshape(2, 4, 16).to(device, dtype).requires_grad_()
    output: Any = on(x)
    output = output[0] if isinstance(output, tuple) else output
    (output * torch.linspace(0, 1, output.numel()).to(device, dtype).view_as(output)).sum().backward()
    return [
        each.detach().cpu()
        for each in (output, x.grad, *(p.grad for p in on.parameters()))
        if each is not None
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_equal_the_cpus_to_the_bit(norm: str, dtype: torch.dtype) -> None:
    module = NORMS[norm]()
    with count_synchronizations() as seen:
        found = gradients(module, "sim", dtype)
    for value, expected in zip(found, gradients(module, "cpu", dtype), strict=True):
        assert value.dtype == expected.dtype
        assert torch.equal(value, expected)
    copies = ("copy to the host", "copy to the device")
    reasons = [place.partition(":")[0] for place in seen.places]
    assert [reason for reason in reasons if reason not in copies] == []


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_layers_have_the_cpus_numbers(cell: str, has_bias: bool) -> None:
    torch.manual_seed(0)
    module = CELLS[cell](16, 8, num_layers=2, bidirectional=True, batch_first=True, bias=has_bias)
    for value, expected in zip(
        gradients(module, "sim", torch.float64), gradients(module, "cpu", torch.float64), strict=True
    ):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "product with its adjoint": lambda w: w @ w.mH,
    "conjugate": lambda w: w.conj(),
    "imaginary part of the conjugate": lambda w: w.conj().imag,
    "copy of the conjugate": lambda w: w.conj().clone(),
    "sum with the conjugate": lambda w: torch.addcmul(w, w, w.conj()),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_conjugated_views_are_read_as_such(name: str) -> None:
    torch.manual_seed(0)
    value = torch.randn(4, 4, dtype=torch.complex64)
    assert torch.equal(COMPLEX[name](value.to("sim")).cpu().resolve_neg(), COMPLEX[name](value).resolve_neg())


def test_bags_of_embeddings_equal_the_cpus() -> None:
    bag = nn.EmbeddingBag(10, 3, mode="max")
    words, starts = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4])
    on_sim = copy.deepcopy(bag).to("sim")
    found, expected = on_sim(words.to("sim"), starts.to("sim")), bag(words, starts)
    assert torch.equal(found.detach().cpu(), expected.detach())
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(on_sim.weight.grad.cpu(), bag.weight.grad)
