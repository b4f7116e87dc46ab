"""`OwnState`: what hooks add to a checkpoint. Hooks see only this part of it."""

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
    "callbacks": "use a callback's own state_dict and load_state_dict for its state",
    "loops": "trainer.current_epoch and trainer.global_step have the position of the run",
    "epoch": "trainer.current_epoch has it",
    "global_step": "trainer.global_step has it",
    "hyper_parameters": "self.hparams has them",
}
"""Keys in checkpoints of other trainers → where to find their values here."""

_NOT_SET = frozenset(_OTHERS) - {"epoch", "global_step"}
"""Keys that hooks may not set: a program that sets one wants to change that part of the checkpoint."""


class OwnState(dict[str, Any]):
    """A dict that explains where to find a key of other trainers' checkpoints, if a hook uses one.

    Args:
        hook: name of the hook that gets it.
        content: what was added so far.
    """

    def __init__(self, hook: str, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._hook = hook

    def __missing__(self, key: str) -> Any:
        if key not in _OTHERS:
            raise KeyError(key)
        raise ConfigError(
            f"{self._hook} reads {key!r}, but it gets only what hooks have added: {_OTHERS[key]}"
        )

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _NOT_SET:
            raise ConfigError(
                f"{self._hook} sets {key!r}, which isn't read when a checkpoint is written or loaded: {_OTHERS[key]}"
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
        # dict.update doesn't call __setitem__.
        for key, value in dict(*others, **further).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # a subclass's own type, as dict has it
        self.update(other)
        return self
