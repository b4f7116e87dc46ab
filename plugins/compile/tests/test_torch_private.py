"""What is private in torch is what this plugin takes it for."""

from __future__ import annotations

import pytest
import torch
from stratagem_compile import torch_private as private
from torch import nn


class Layer(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def test_compilations_are_seen() -> None:
    began: list[object] = []
    ended: list[object] = []
    before = private.graphs()
    remove = private.on_compilations(began.append, ended.append)
    torch.compile(Layer(), backend="eager")(torch.zeros(2))
    assert (len(began), len(ended), private.graphs() - before) == (1, 1, 1)
    remove()
    torch.compile(Layer(), backend="eager")(torch.zeros(2, dtype=torch.float64))
    assert (len(began), private.graphs() - before) == (1, 2)


def test_errors_of_a_backend_have_the_base() -> None:
    def backend(graph: object, inputs: object) -> object:
        raise ArithmeticError("cursed")

    with pytest.raises(private.compiler_error()) as caught:
        torch.compile(Layer(), backend=backend)(torch.zeros(2))
    assert isinstance(caught.value.inner_exception, ArithmeticError)  # type: ignore[attr-defined]  # of BackendCompilerFailed


def test_the_limit_is_a_keyword_of_torch_compile() -> None:
    compiled = torch.compile(Layer(), backend="eager", **private.limit_of_recompilations(16))
    assert compiled(torch.ones(2)).tolist() == [2, 2]
