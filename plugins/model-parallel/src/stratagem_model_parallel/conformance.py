"""What `stratagem conformance model_parallel` and the tests try."""

from __future__ import annotations

from typing import Any

from stratagem_testing import StrategySubject
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem_model_parallel.blocks import split_blocks
from stratagem_model_parallel.built_in import BUILT_IN
from stratagem_model_parallel.torch_private import was_distributed


def whatever_can_be(module: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """Split what the built-in plans know, and any other layer by its outputs or its vocabulary.

    A layer whose parameters are used outside of its forward stays whole.
    """
    split_blocks(module, BUILT_IN, mesh, sequence=False)
    plan: dict[str, Any] = {}
    for name, layer in module.named_modules():
        if was_distributed(layer) or _is_looked_into(module, name):
            continue
        if type(layer) is nn.Linear:
            plan[name] = "colwise_gathered"
        elif type(layer) is nn.Embedding:
            plan[name] = "rowwise"
    return plan


def _is_looked_into(module: nn.Module, name: str) -> bool:
    """The kit's nets with buffers use the bias of their layer beside it."""
    above = module.get_submodule(name.rpartition(".")[0])
    return any(True for _ in above.buffers(recurse=False))


def copies(world_size: int) -> int:
    """Four devices make two copies of two parts each; otherwise there is one copy."""
    return 2 if world_size == 4 else 1


SUBJECT = StrategySubject(
    "model_parallel",
    options={"timeout_s": 60, "parallelize": whatever_can_be},
    options_at={4: {"tensor_parallel_size": 2}},
    data_ranks=copies,
)
