"""Subjects of `stratagem conformance` for model_parallel and context_parallel, and of the tests."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_sharding.torch_private import backward_hooks, post_accumulate_hooks
from stratagem_testing import AxisSubject, StrategySubject
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem_model_parallel.blocks import split_blocks
from stratagem_model_parallel.built_in import BUILT_IN
from stratagem_model_parallel.context.live import live_ranks
from stratagem_model_parallel.context.plan import BUILT_IN as KNOWN_BLOCKS
from stratagem_model_parallel.mesh import TENSOR
from stratagem_model_parallel.torch_private import was_distributed


def whatever_can_be(module: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """Split blocks that the built-in plans know, other linear layers by outputs, and embeddings by vocabulary.

    A layer whose parameters are used outside of its forward isn't split.
    """
    split_blocks(module, BUILT_IN, mesh, sequence=False)
    plan: dict[str, Any] = {}
    for name, layer in module.named_modules():
        if was_distributed(layer) or _is_looked_into(module, name):
            continue
        if type(layer) is nn.Linear and layer.out_features >= mesh[TENSOR].size():
            plan[name] = "colwise_gathered"
        elif type(layer) is nn.Embedding:
            plan[name] = "rowwise"
    return plan


def _is_looked_into(module: nn.Module, name: str) -> bool:
    """Whether a layer's parameters are used outside of its forward, as in the kit's modules with buffers."""
    above = module.get_submodule(name.rpartition(".")[0])
    return any(True for _ in above.buffers(recurse=False))


def copies(world_size: int) -> int:
    """Return the number of copies of the model: 2 on four devices, else 1."""
    return 2 if world_size == 4 else 1


SUBJECT = StrategySubject(
    "model_parallel",
    options={"timeout_s": 60, "parallelize": whatever_can_be},
    options_at={4: {"tensor_parallel_size": 2}},
    data_ranks=copies,
)


AXIS_SUBJECT = AxisSubject("tensor", options={"parallelize": whatever_can_be})


def shards_of_batches(module: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """Shard sequences before known blocks; let other linear layers compute on shards of the batch.

    The kit's modules have no sequences, so linear layers treat samples as tokens, if the batch divides equally among
    ranks. tests/test_context_parity.py tests real models with attention.
    """
    inputs: dict[str, Any] = {}
    inside: set[nn.Module] = set()
    for name, layer in module.named_modules():
        known = next((plan for plan in KNOWN_BLOCKS if layer not in inside and plan.fits(layer)), None)
        if known is not None:
            inputs[name] = known.inputs_of(layer)
            inside.update(layer.modules())
        elif type(layer) is nn.Linear and not (
            layer in inside or hasattr(layer, _MARK) or was_distributed(layer) or _has_hooks(layer)
        ):
            setattr(layer, _MARK, True)
            _cut_batches(layer)
    return inputs


_MARK = "has_shards_of_batches"


def _has_hooks(layer: nn.Module) -> bool:
    """Whether a layer has hooks on gradients. Such a block is refused: hooks would get gradients of a shard."""
    return any(backward_hooks(each) or post_accumulate_hooks(each) for each in layer.parameters())


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


CONTEXT_AXIS_SUBJECT = AxisSubject("context", options={"parallelize": shards_of_batches})


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
