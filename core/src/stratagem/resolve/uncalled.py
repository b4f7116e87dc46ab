"""Methods of strategies that other trainers call and Stratagem doesn't, each with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType

from stratagem.errors import ConfigError

_GROUP = "open the process group in open_collectives(self, request)"
_SETUP = "the hook `setup`, which returns a Prepared"
_STEP = f"override it in the module, or wrap {_SETUP} with its own forward"
_CHECKPOINT = "give the strategy checkpoint_io=, a Checkpointer with its own save and open"
_STATES = f"wrap {_SETUP} with its own model_tensors, optimizer_tensors and load"
UNCALLED: Mapping[str, str] = {
    "init_ddp_connection": _GROUP,
    "init_dist_connection": _GROUP,
    "setup_distributed": _GROUP,
    "optimizer_step": f"override it in the module, or wrap {_SETUP} with its own step",
    "training_step": _STEP,
    "validation_step": _STEP,
    "test_step": _STEP,
    "predict_step": _STEP,
    "pre_backward": f"override on_before_backward in the module, or wrap {_SETUP} with its own backward",
    "post_backward": f"override on_after_backward in the module, or wrap {_SETUP} with its own backward",
    "batch_to_device": "override transfer_batch_to_device in the module",
    "process_dataloader": f"wrap {_SETUP} with its own dataloader",
    "save_checkpoint": _CHECKPOINT,
    "load_checkpoint": _CHECKPOINT,
    "remove_checkpoint": _CHECKPOINT,
    "lightning_module_state_dict": _STATES,
    "load_model_state_dict": _STATES,
    "optimizer_state": _STATES,
    "load_optimizer_state_dict": _STATES,
    "setup_optimizers": f"override configure_optimizers in the module, or wrap {_SETUP} with its own optimizers",
    "setup_module": f"write {_SETUP} with its own module",
    "model_to_device": f"write {_SETUP} with its own module",
    "determine_ddp_device_ids": "override configure_ddp(self, module, device)",
}
"""Method → what to do instead."""


def refuse_uncalled(classes: Iterable[type]) -> None:
    """Refuse a user's strategy that overrides a method that nothing calls.

    A method is accepted if another method of the same classes mentions it: it is then a helper of the user's.

    Args:
        classes: the user's own classes, nearest first.

    Raises:
        ConfigError: names the method, and what to write.
    """
    classes = list(classes)
    for cls in classes:
        for name, advice in UNCALLED.items():
            if callable(vars(cls).get(name)) and not _is_mentioned(name, classes):
                raise ConfigError(
                    f"{cls.__qualname__}.{name} overrides a method that nothing calls here: {advice}"
                )


def _is_mentioned(name: str, classes: Iterable[type]) -> bool:
    return any(
        name in code.co_names
        for cls in classes
        for other, value in vars(cls).items()
        if other != name and isinstance(value, FunctionType)
        for code in _codes(value.__code__)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
