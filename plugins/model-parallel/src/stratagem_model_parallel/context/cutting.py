"""Hooks on blocks: they shard sequences before the first block of a row, and gather them after the last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from stratagem_sharding.torch_private import backward_hooks, is_compiled, post_accumulate_hooks
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem import ConfigError
from stratagem.sdk.tensors import leaves_in, map_tensors
from stratagem_model_parallel.blocks import rows_in_part, rows_of
from stratagem_model_parallel.context.plan import Block
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.context.region import Attention, SequenceRegion
from stratagem_model_parallel.replicas import is_same
from stratagem_model_parallel.torch_private import is_in_backward

FEWEST = 2
"""Minimum tokens per rank: models treat a single query as the continuation of a sequence."""


def cut_blocks(
    root: nn.Module,
    blocks: Sequence[Block],
    ranks: SequenceRanks,
    attention: Attention,
    tensor: Any = None,
    *,
    is_part: bool = False,
) -> list[Any]:
    """Make `blocks` compute on shards of the sequence. Not collective, but forwards are.

    Args:
        root: the user's module.
        blocks: blocks of `root`. Consecutive blocks in a ModuleList or Sequential pass on shards.
        ranks: the ranks among which sequences are sharded.
        attention: computes attention among these ranks.
        tensor: the group of ranks among which layers are split, if any. They have the same activations.
        is_part: whether other ranks have some blocks of a row. Sequences are then gathered after this rank's last
            block.

    Returns:
        Handles; their `remove` undoes the change.

    Raises:
        ConfigError: a block is compiled, lacks a named argument, has hooks on parameters, or is inside of another.
    """
    by_module = {block.module: block for block in blocks}
    for block in blocks:
        inner = next(
            (by_module[m] for m in block.module.modules() if m in by_module and m is not block.module), None
        )
        if inner is not None:
            raise ConfigError(
                f"the plan cuts sequences before {block.name!r} and again before {inner.name!r}, which is in it: "
                "name one of them"
            )
        _refuse_hooks(block)
    handles: list[Any] = []
    rows = rows_in_part if is_part else rows_of
    for row in rows(root, list(by_module), (nn.ModuleList, nn.Sequential)):
        state = _Row(repr(by_module[row[0]].name), tensor)
        for module in dict.fromkeys(row):
            hooks = _Hooks(by_module[module], state, module is row[0], module is row[-1], ranks, attention)
            before = module.register_forward_pre_hook(_plain(hooks.before), with_kwargs=True)
            after = module.register_forward_hook(_plain(hooks.after), prepend=True, always_call=True)
            handles += [before, after]
    return handles


def _refuse_hooks(block: Block) -> None:
    """Refuse hooks that would be called with the gradient of a shard: a hook may not be linear."""
    for name, parameter in block.module.named_parameters():
        if backward_hooks(parameter) or post_accumulate_hooks(parameter):
            raise ConfigError(
                f"'{block.name}.{name}' has a hook on its gradient (register_hook or "
                "register_post_accumulate_grad_hook), which would get that of a shard of the sequence: change "
                "gradients in configure_gradient_clipping or on_before_optimizer_step, or choose ddp"
            )


class _Row:
    """Consecutive blocks. Sequences are sharded before the first one, and gathered after the last one."""

    def __init__(self, first: str, tensor: Any) -> None:
        self.first, self.is_cut = first, False
        self._tensor, self._is_checked = tensor, tensor is None

    def refuse_shards(self, activations: torch.Tensor) -> None:
        """Refuse activations that axis `tensor` has sharded. Checks the first call; collective over its ranks."""
        if self._is_checked:
            return
        self._is_checked = True
        if isinstance(activations, DTensor) or not is_same(activations, self._tensor):
            raise ConfigError(
                f"{self.first} got activations that axis 'tensor' has in shards, and axis 'context' is "
                "to cut them, too: leave styles for sequences out of the plan for axis 'tensor'"
            )

    def refuse_cut(self, grad: torch.Tensor) -> None:
        """Refuse a backward from outputs that are still shards."""
        if self.is_cut:
            raise ConfigError(
                f"the forward that began with {self.first} ended before the last block in its row, so that outputs "
                "were shards of the sequence: call all blocks of the row, or give a plan of those "
                "that are called each time"
            )


class _Hooks:
    """The hooks before and after the forward of one block."""

    def __init__(
        self,
        block: Block,
        row: _Row,
        is_first: bool,
        is_last: bool,
        ranks: SequenceRanks,
        attention: Attention,
    ) -> None:
        module = block.module
        if is_compiled(module):
            raise ConfigError(
                f"{block.name!r} is compiled, and context parallelism can't shard the sequences of compiled blocks: "
                "leave torch.compile out"
            )
        self._name, self._row, self._is_first, self._is_last = repr(block.name), row, is_first, is_last
        self._ranks, self._attention = ranks, attention if block.attends else None
        self._fewest = FEWEST if block.attends else 1
        self._parameters = list(signature(module.forward).parameters)
        self._dims = {name or self._parameters[0]: dim for name, dim in block.inputs.items()}
        self._activations = next(iter(self._dims))
        unknown = next((name for name in self._dims if name not in self._parameters), None)
        if unknown is not None:
            raise ConfigError(
                f"the plan cuts {unknown!r} of {block.name!r}, whose forward has no such argument: it has "
                f"{', '.join(self._parameters)}"
            )
        self._entered: list[tuple[nn.Module, SequenceRegion, int]] = []

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(self._parameters, args)), **kwargs}
        activations = given.get(self._activations)
        if not isinstance(activations, torch.Tensor):
            raise ConfigError(
                f"{self._name} was called without {self._activations!r}, whose sequences are to be cut"
            )
        if not (self._row.is_cut or self._is_first or is_in_backward()):
            raise ConfigError(
                f"{self._name} was called before {self._row.first}, with which sequences are cut: call the blocks of "
                "a row in their order, or leave them out of the plan"
            )
        changed = {
            name: map_tensors(partial(self._ranks.shard, dim=dim, fewest=self._fewest), given[name])
            for name, dim in self._dims.items()
            if name in given and name != self._activations
        }
        if self._is_first:
            self._row.refuse_shards(activations)
            activations = self._ranks.shard(activations, self._dims[self._activations], self._fewest)
            changed[self._activations] = activations
            if not is_in_backward():
                self._row.is_cut = True
                if activations.requires_grad:
                    activations.register_hook(self._row.refuse_cut)  # type: ignore[no-untyped-call]  # torch has no types for it
        region = SequenceRegion(self._name, self._ranks, self._attention)
        region.__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._entered.append((module, region, activations.shape[self._dims[self._activations]]))
        return (
            tuple(changed.get(name, value) for name, value in zip(self._parameters, args))
            + args[len(self._parameters) :],
            {name: changed.get(name, value) for name, value in kwargs.items()},
        )

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not self._entered or self._entered[-1][0] is not module:
            return None  # another hook raised before `before` ran
        _, region, length = self._entered.pop()
        region.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch has no types for it
        if output is None:
            return None  # it raised
        if self._attention is not None and not region.attended:
            raise ConfigError(
                f"{self._name} computed no attention by torch.nn.functional.scaled_dot_product_attention, so that "
                "each rank would attend within its shard: call that function, as transformers does with "
                'attn_implementation="sdpa", or give the block the style "tokenwise" if it has no attention'
            )
        tensors = [leaf for leaf in leaves_in(output) if isinstance(leaf, torch.Tensor)]
        dim = self._dims[self._activations]
        if len(tensors) != 1 or tensors[0].dim() <= dim or tensors[0].shape[dim] != length:
            shapes = ", ".join(str(tuple(each.shape)) for each in tensors) or "none"
            raise ConfigError(
                f"{self._name} returned tensors of shapes {shapes}, and context parallelism takes blocks that return "
                f"their activations alone, with the sequence's {length} tokens of this rank in dimension {dim}: "
                "return nothing else, or leave the block out of the plan"
            )
        if not self._is_last:
            return output
        if not is_in_backward():
            self._row.is_cut = False
        return map_tensors(lambda x: self._ranks.gathered(x, dim), output)


def _plain(method: Any) -> Any:
    """Wrap a method in a function. A deep copy of a module shares functions, and must share the process group."""

    def hook(*args: Any) -> Any:
        return method(*args)

    return hook
