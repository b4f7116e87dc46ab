"""Which modules hold the experts of a mixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING

from stratagem_sharding.torch_private import is_compiled, own_parameters
from stratagem_sharding.wrap_policy import modules_named

from stratagem import ConfigError

if TYPE_CHECKING:
    from stratagem_sharding.wrap_policy import Policy
    from torch import nn

CONVENTION = (
    "a module that holds experts has parameters whose first dimension is the experts, no modules with parameters "
    "in it, and forward(hidden, index, weights) with tensors of shapes (tokens, width), (tokens, k) and (tokens, k)"
)


@dataclass(frozen=True)
class Mixture:
    """A module that holds experts."""

    name: str
    """In its root."""
    module: nn.Module
    experts: int
    """How many it has."""
    arguments: tuple[str, str, str]
    """Names of its forward's first arguments: hidden states, indices of experts, and their weights."""


def mixtures_of(root: nn.Module, further: Policy = None) -> list[Mixture]:
    """Return the mixtures in a module.

    Recognised are modules of a class whose name ends with "Experts", as those of transformers.

    Args:
        root: the module.
        further: which modules hold experts, too: names of classes, as for fsdp's auto_wrap_policy.

    Raises:
        ConfigError: there is none; or one of `further` can't be split.
    """
    named = set(modules_named(root, further, "modules")) if further is not None else set()
    places = Counter(id(each) for _, each in root.named_parameters(remove_duplicate=False))
    found = []
    for name, module in root.named_modules():
        is_known = type(module).__name__.endswith("Experts")
        if not is_known and module not in named:
            continue
        objection = next(_objections(module, places), None)
        if objection is None:
            hidden, index, weights = list(signature(module.forward).parameters)[:3]
            found.append(Mixture(name, module, _experts(module), (hidden, index, weights)))
        elif module in named:
            raise ConfigError(
                f"{name!r}, a {type(module).__name__}, can't be split along axis 'expert': {objection}; {CONVENTION}"
            )
    if not found:
        raise ConfigError(
            f"axis 'expert' found no experts in {type(root).__name__}: name the modules that hold them by "
            f"modules=[...], or leave the axis out; {CONVENTION}"
        )
    return found


def refuse_compiled(root: nn.Module, mixtures: Sequence[Mixture]) -> None:
    """Refuse mixtures that `torch.compile` was applied to, or to a module around them.

    Raises:
        ConfigError: names the first such module.
    """
    for name, module in root.named_modules():
        if is_compiled(module):
            inside = set(module.modules())
            found = next((each.name for each in mixtures if each.module in inside), None)
            if found is not None:
                raise ConfigError(
                    f"{name or type(root).__name__!r} is compiled, and under axis 'expert' the number of tokens that "
                    f"experts ({found!r}) get differs in every step: compile other modules alone"
                )


def _experts(module: nn.Module) -> int:
    return next(len(each) for each in own_parameters(module).values() if each is not None)


def _objections(module: nn.Module, places: Counter[int]) -> Iterator[str]:
    """Give what keeps a module from being split, as the end of a sentence.

    Args:
        module: any.
        places: id of a parameter → how many places of the root it is in.
    """
    own = [each for each in own_parameters(module).values() if each is not None]
    if len({each.shape[:1] for each in own}) != 1 or not own[0].dim():
        yield "its parameters have no first dimension in common"
    if len(own) != sum(1 for _ in module.parameters()):
        yield "modules in it have parameters"
    if any(places[id(each)] > 1 for each in own):
        yield "other modules have its parameters, too"
    if any(True for _ in module.buffers()):
        yield "it has buffers"
    if len(signature(module.forward).parameters) < 3:
        yield "its forward doesn't take three arguments"
