"""`OwnState`: what a program adds to a checkpoint, which is all that its hooks get of one."""

from __future__ import annotations

from typing import Any

from stratagem.errors import ConfigError

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
