"""What is private in torch is what this plugin takes it for."""

from __future__ import annotations

import torch
from stratagem_activations.torch_private import FUSED_ATTENTION
from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: set[object] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # as torch's
        self.operations.add(operation)
        return operation(*args, **(kwargs or {}))


def test_attention_calls_one_of_the_fused_operations() -> None:
    query = torch.randn(1, 2, 8, 4, requires_grad=True)
    with Calls() as calls:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert calls.operations & FUSED_ATTENTION
