"""The lists of parameters in an optimizer's groups, which the engine fills with flat shards at stages 1 to 3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from torch.optim import Optimizer

from stratagem import CombinationError


class EngineParameters(list[Any]):
    """The list of parameters in an optimizer's group; raises when the user's code changes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise CombinationError(
            "the list of parameters of an optimizer's group was changed after setup(), and deepspeed's stages 1 to 3 "
            "decide at the start what each group steps: put each parameter into its group before setup(), and change "
            "lr and other settings of groups, or choose strategy ddp or fsdp"
        )

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


def guard(optimizers: Iterable[Optimizer]) -> None:
    """Make the lists in the optimizers' groups read-only. Call it again after the engine has replaced them."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if type(group["params"]) is list:
            group["params"] = EngineParameters(group["params"])


def remove_guards(optimizers: Iterable[Optimizer]) -> None:
    """Put ordinary lists into the groups again, for the engine, or for the user at the end."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if isinstance(group["params"], EngineParameters):
            group["params"] = list(group["params"])
