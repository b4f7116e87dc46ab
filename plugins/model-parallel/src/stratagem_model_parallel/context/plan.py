"""Plans for which modules compute on shards of the sequence: the user's, or for known blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from stratagem_trainer import Module
from torch import nn

from stratagem import ConfigError
from stratagem_model_parallel.built_in import ENCODER_LAYER, GPT2, LLAMA
from stratagem_model_parallel.plan import modules_like, returned

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Inputs = Mapping[str, int]
"""Names of a forward's arguments → their sequence dimension. The first entry is the activations, with the block's
output in the same layout; "" stands for the first argument. Arguments that aren't named, such as masks, aren't
sharded."""

ACTIVATIONS: Inputs = {"": 1}


@dataclass(frozen=True)
class ContextPlan:
    """How to shard the inputs of a kind of block, and whether it has attention."""

    matches: Union[str, Callable[[nn.Module], bool]]
    """Name of the block's class, or a function that recognises such a block."""
    inputs: Union[Inputs, Callable[[Any], Inputs]] = field(default_factory=lambda: ACTIVATIONS)
    """Names of its forward's arguments → the sequence dimension, or a function that returns these for a block."""
    attends: bool = True
    """Whether it has attention, which must use torch's `scaled_dot_product_attention` or MultiheadAttention."""

    def fits(self, module: nn.Module) -> bool:
        """Whether `module` is such a block."""
        if isinstance(self.matches, str):
            return type(module).__name__ == self.matches
        return self.matches(module)

    def inputs_of(self, block: nn.Module) -> Inputs:
        """Return which inputs of `block` are cut."""
        return self.inputs(block) if callable(self.inputs) else self.inputs


@dataclass(frozen=True)
class Block:
    """A module that computes on shards of the sequence."""

    name: str
    """Its name in the user's module, for errors."""
    module: nn.Module
    inputs: Inputs
    attends: bool


Style = Union[str, Inputs]
Plan = Union[Mapping[str, Style], Callable[[nn.Module, "DeviceMesh"], Any], None]
"""Names of modules → "block", "tokenwise", or a block's inputs; or a function of the module and the mesh that
returns such a dict."""

BUILT_IN = (
    ContextPlan(LLAMA.matches, {"hidden_states": 1, "position_embeddings": 1}),
    ContextPlan(GPT2.matches),
    ContextPlan(ENCODER_LAYER.matches, lambda block: {"src": 1 if block.self_attn.batch_first else 0}),
)
"""Built-in plans, in the order in which they are tried."""


def blocks_of(root: nn.Module, plan: Plan, plans: Sequence[ContextPlan], mesh: DeviceMesh) -> list[Block]:
    """Return the modules of `root` that compute on shards, by the first available plan. Not collective.

    Args:
        root: the user's module, whose names a plan uses.
        plan: of the strategy or axis; None uses the module's own `parallelize(mesh)`, or else `plans`.
        plans: plans for kinds of blocks; the first one that fits is used.
        mesh: with a dimension "context".

    Raises:
        ConfigError: the plan is invalid, names a module that doesn't exist, or no block is found.
    """
    given: Any = plan
    if plan is None and isinstance(root, Module):
        own = root.parallelize(mesh)
        if own is not NotImplemented:
            given = returned(own, root, f"{type(root).__name__}.parallelize")
    elif callable(plan):
        given = returned(plan(root, mesh), root, getattr(plan, "__qualname__", repr(plan)))
    if given is None:
        return _known_blocks(root, plans)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"parallelize={given!r} is a {type(given).__name__}: give a dict of module names and styles, or a "
            "function of (module, mesh)"
        )
    return [
        _styled(style, name, module)
        for pattern, style in given.items()
        for name, module in modules_like(pattern, root)
    ]


def _styled(style: Any, name: str, module: nn.Module) -> Block:
    if isinstance(style, Mapping) and style and all(isinstance(dim, int) for dim in style.values()):
        return Block(name, module, style, attends=True)
    if style in ("block", "tokenwise"):
        return Block(name, module, ACTIVATIONS, attends=style == "block")
    raise ConfigError(
        f'the plan gives {name!r} the style {style!r}: where sequences are cut give "block" for what has attention, '
        '"tokenwise" for what treats each token separately, or for a block a dict of its forward\'s arguments and '
        'their dimension that is the sequence, as {"hidden_states": 1, "position_embeddings": 1}'
    )


def _known_blocks(root: nn.Module, plans: Sequence[ContextPlan]) -> list[Block]:
    found: list[Block] = []
    inside: set[nn.Module] = set()
    for name, module in root.named_modules():
        if module in inside:
            continue
        fitting = next((plan for plan in plans if plan.fits(module)), None)
        if fitting is not None:
            found.append(Block(name, module, fitting.inputs_of(module), fitting.attends))
            inside.update(module.modules())
    if not found:
        raise ConfigError(
            f"the built-in plans know no block of {type(root).__name__}, so that no sequence would be cut: give "
            'parallelize={name: "block", ...}, or a method parallelize(self, mesh) that returns such a dict'
        )
    return found
