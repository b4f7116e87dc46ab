"""What `stratagem conformance` of model_parallel and of context_parallel, and the tests, try."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_testing import StrategySubject
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem_model_parallel.blocks import split_blocks
from stratagem_model_parallel.built_in import BUILT_IN
from stratagem_model_parallel.context.live import live_ranks
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


def shards_of_batches(module: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """Let linear layers compute on shards of the batch, where ranks can have equal ones.

    The kit's nets have no sequences; to a linear layer, samples are what tokens are. Real models, with attention, are
    in tests/test_context_parity.py.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear and not hasattr(layer, _MARK):
            setattr(layer, _MARK, True)
            _cut_batches(layer)
    return {}


_MARK = "has_shards_of_batches"


def _cut_batches(layer: nn.Module) -> None:
    is_cut = [False]

    def before(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        ranks = live_ranks()
        is_cut[0] = ranks is not None and len(args[0]) > 0 and len(args[0]) % ranks.size == 0
        return (ranks.shard(args[0], 0), *args[1:]) if ranks is not None and is_cut[0] else None

    def after(layer: nn.Module, args: Any, output: torch.Tensor) -> Any:
        ranks = live_ranks()
        return ranks.gathered(output, 0) if ranks is not None and is_cut[0] else None

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)


CONTEXT_SUBJECT = StrategySubject(
    "context_parallel",
    options={"timeout_s": 60, "parallelize": shards_of_batches},
    options_at={4: {"context_parallel_size": 2}},
    # DistributedDataParallel looks for unused parameters only when it is asked to.
    options_for={
        name: {"find_unused_parameters": True} for name in ("unused_parameters", "used_on_some_ranks")
    },
    data_ranks=copies,
)
