"""`OwnState`: what a program adds to a checkpoint, which is all that its hooks get of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_OTHERS = {
    "state_dict": "parameters and buffers are those of the module: rename them by `stratagem checkpoint convert`, or "
    "load them with strict=False",
    "optimizer_states": "optimizers' states are saved and loaded by the strategy",
    "lr_schedulers": "schedulers' states are saved and loaded by the trainer",
    "callbacks": "a callback's own are what its state_dict and load_state_dict are for",
    "loops": "trainer.current_epoch and trainer.global_step say where the run is",
    "epoch": "trainer.current_epoch has it",
    "global_step": "trainer.global_step has it",
    "hyper_parameters": "self.hparams has them",
}
"""What checkpoints of other trainers have under these keys → where it is."""

_NOT_SET = frozenset(_OTHERS) - {"epoch", "global_step"}
"""Where other trainers write and read what is set under these keys, a program that sets them means to change that."""


class OwnState(dict[str, Any]):
    """Says so where a hook asks for a part of the checkpoint that it doesn't get.

    Args:
        hook: which gets it.
        content: what was added so far.
    """

    def __init__(self, hook: str, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._hook = hook

    def __missing__(self, key: str) -> Any:
        if key not in _OTHERS:
            raise KeyError(key)
        raise ConfigError(f"{self._hook} asks for {key!r}, and gets what programs add alone: {_OTHERS[key]}")

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _NOT_SET:
            raise ConfigError(
                f"{self._hook} sets {key!r}, which isn't what a checkpoint is written or read from: {_OTHERS[key]}"
            )
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self or key in _NOT_SET else default

    def pop(self, key: str, *default: Any) -> Any:
        return self[key] if key not in self and key in _NOT_SET else super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **further: Any) -> None:
        # dict's own doesn't call __setitem__.
        for key, value in dict(*others, **further).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # a subclass's own type, as dict has it
        self.update(other)
        return self
