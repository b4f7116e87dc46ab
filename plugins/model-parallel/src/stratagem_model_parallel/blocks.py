"""Plans for blocks that are recognised by their class or structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Union, cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem import ConfigError
from stratagem_model_parallel.mesh import TENSOR
from stratagem_model_parallel.plan import apply, modules_like
from stratagem_model_parallel.styles import Style, style_for


def batch_first(block: Any) -> int:
    """Return 1: the sequence is the second dimension."""
    return 1


@dataclass(frozen=True)
class BlockPlan:
    """How to split each block of a kind. Names are relative to the block; "" is the block itself."""

    matches: Union[str, Callable[[nn.Module], bool]]
    """Name of the block's class, or a function that recognises such a block."""
    styles: Union[Mapping[str, Style], Callable[[Any], Mapping[str, Style]]]
    """Names of modules → styles, or a function that returns them for a block."""
    sequence_styles: Mapping[str, Style] | None = None
    """Styles that override or extend `styles` under sequence_parallel; None if the block doesn't support it."""
    divided: Sequence[str] = ()
    """Attributes, as "attn.num_heads", that are divided by the number of ranks."""
    divisible: Sequence[str] = ()
    """Attributes that must be multiples of the number of ranks, such as numbers of heads."""
    sequence_dim: Callable[[Any], int] = batch_first
    """Returns the sequence dimension of the block's activations."""

    def fits(self, module: nn.Module) -> bool:
        """Whether `module` is such a block."""
        if isinstance(self.matches, str):
            return type(module).__name__ == self.matches
        return self.matches(module)

    def refuse_uneven(self, block: nn.Module, name: str, size: int) -> None:
        """Refuse a block that can't be split equally among `size` ranks.

        Raises:
            ConfigError: names the attribute.
        """
        for attribute in dict.fromkeys((*self.divided, *self.divisible)):
            _refuse_uneven(name, attribute, _get(block, attribute), size)

    def split(self, block: nn.Module, name: str, mesh: DeviceMesh, sequence: bool) -> None:
        """Split a block.

        Args:
            block: a block that fits.
            name: of the block, for errors.
            mesh: ("data", "tensor").
            sequence: whether to use sequence parallelism.

        Raises:
            ConfigError: the block can't be split equally among the ranks.
        """
        size = mesh[TENSOR].size()
        self.refuse_uneven(block, name, size)
        styles = dict(self.styles(block) if callable(self.styles) else self.styles)
        if sequence:
            styles.update(self.sequence_styles or {})
        for below, style in styles.items():
            for found, module in modules_like(below, block):
                apply(style_for(style, f"{name}.{found}", module, self.sequence_dim(block)), module, mesh)
        for attribute in self.divided:
            _set(block, attribute, _get(block, attribute) // size)


def known_blocks(root: nn.Module, plans: Sequence[BlockPlan]) -> dict[nn.Module, tuple[str, BlockPlan]]:
    """Return the outermost blocks in `root` that a plan fits, each with its name and the first such plan."""
    found: dict[nn.Module, tuple[str, BlockPlan]] = {}
    inside: set[nn.Module] = set()
    for name, module in root.named_modules():
        if module in inside:
            continue
        fitting = next((plan for plan in plans if plan.fits(module)), None)
        if fitting is not None:
            found[module] = name, fitting
            inside.update(module.modules())
    return found


def split_blocks(
    root: nn.Module, plans: Sequence[BlockPlan], mesh: DeviceMesh, sequence: bool
) -> list[nn.Module]:
    """Split every block in `root` by the first of `plans` that fits it; return the blocks.

    Under sequence parallelism, the blocks of a ModuleList pass on shards of the sequence: the first block shards it,
    and the last one gathers it.
    """
    found = known_blocks(root, plans)
    for block, (name, plan) in found.items():
        plan.split(block, name, mesh, sequence)
    if sequence:
        cut = [block for block, (_, plan) in found.items() if plan.sequence_styles is not None]
        if not cut:
            raise ConfigError(
                f"sequence_parallel=True, and the built-in plans know no block of {type(root).__name__} in which "
                "they could cut sequences: leave it out, or give a plan with the styles for it"
            )
        for row in rows_of(root, cut):
            _, plan = found[row[0]]
            dim = plan.sequence_dim(row[0])
            apply(style_for("enter_sequence", "", row[0], dim), row[0], mesh)
            apply(style_for("leave_sequence", "", row[-1], dim), row[-1], mesh)
    return list(found)


def rows_of(
    root: nn.Module, blocks: Sequence[nn.Module], containers: tuple[type[nn.Module], ...] = (nn.ModuleList,)
) -> list[list[nn.Module]]:
    """Group blocks into rows of consecutive ones: all blocks of a container, or a single block.

    Args:
        root: what they are in.
        blocks: in any order.
        containers: classes of modules whose children are called one after the other.
    """
    left = dict.fromkeys(blocks)
    rows = []
    for module in root.modules():
        items: list[nn.Module] = list(cast(Any, module)) if isinstance(module, containers) else []
        if items and all(item in left for item in items):
            rows.append(items)
            for item in items:
                left.pop(item, None)
    return [*rows, *([block] for block in left)]


def rows_in_part(
    root: nn.Module, blocks: Sequence[nn.Module], containers: tuple[type[nn.Module], ...]
) -> list[list[nn.Module]]:
    """Group blocks into rows of consecutive ones, for a rank that has only some blocks of a container.

    Args:
        root: what they are in.
        blocks: those that this rank has, in any order.
        containers: classes of modules whose children are called one after the other.
    """
    left = dict.fromkeys(blocks)
    rows: list[list[nn.Module]] = []
    for module in root.modules():
        items: list[nn.Module] = list(cast(Any, module)) if isinstance(module, containers) else []
        for is_own, run in groupby(items, left.__contains__):
            if is_own:
                rows.append(list(run))
        for item in items:
            left.pop(item, None)
    return [*rows, *([block] for block in left)]


def _refuse_uneven(name: str, attribute: str, value: Any, size: int) -> None:
    if not isinstance(value, int) or value % size:
        raise ConfigError(
            f"{name!r} has {attribute}={value}, which can't be distributed equally among {size} ranks: choose a "
            f"tensor_parallel_size that divides {value}"
        )


def _get(block: nn.Module, attribute: str) -> Any:
    value: Any = block
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _set(block: nn.Module, attribute: str, value: int) -> None:
    path, _, last = attribute.rpartition(".")
    setattr(_get(block, path) if path else block, last, value)
