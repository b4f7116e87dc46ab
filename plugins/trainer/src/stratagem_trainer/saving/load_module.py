"""`load_from_checkpoint`: construct a module with the hyperparameters and weights in a checkpoint."""

from __future__ import annotations

import inspect
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch

from stratagem import LocalCollectives
from stratagem.errors import CheckpointError, ConfigError
from stratagem.sdk.selection import path_text
from stratagem.sdk.states import fitting, load_model
from stratagem_trainer.module.hyperparameter_values import dataclass_named, decoded, named_by
from stratagem_trainer.module.hyperparameters import Hyperparameters
from stratagem_trainer.saving.user_state import OwnState
from stratagem_trainer.stage.hooks import overrides

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.module.module import Module

M = TypeVar("M", bound="Module")
D = TypeVar("D", bound="DataModule")
T = TypeVar("T")

MODEL = "model/"
OF_MODULE, OF_DATA = "hyperparameters", "datamodule_hyperparameters"
"""Keys in a checkpoint's state."""


class SavedHyperparameters(msgspec.Struct):
    """Type of what `HyperparametersMixin.hyperparameter_state` returns. Validates untrusted checkpoints."""

    values: dict[str, Any] = {}
    called: list[str] = []
    whole: tuple[str, str] | None = None
    left_out: dict[str, str] = {}


def load_module(
    kind: type[M],
    path: str | os.PathLike[str],
    map_location: Any,
    strict: bool,
    allowed: Iterable[Any],
    overrides: Mapping[str, Any],
) -> M:
    """Return a module of class `kind` with the weights of a checkpoint; see `Module.load_from_checkpoint`."""
    if map_location is not None and not isinstance(map_location, (str, torch.device)):
        raise ConfigError(
            f'map_location is a {type(map_location).__name__}: pass a device, such as "cpu" or "cuda:0"'
        )
    reader = _open(path)
    module = make(kind, reader, OF_MODULE, allowed, overrides)
    from stratagem_trainer.stage.build import configure_alone

    configure_alone(module)
    with fitting(reader):
        user = reader.state.get("user")
        if user is not None:
            module.on_load_checkpoint(OwnState("on_load_checkpoint", user))
        _load_weights(module, reader, strict)
    return module if map_location is None else module.to(map_location)


def load_data(
    kind: type[D], path: str | os.PathLike[str], allowed: Iterable[Any], overrides: Mapping[str, Any]
) -> D:
    """Return a data module of class `kind`; see `DataModule.load_from_checkpoint`."""
    reader = _open(path)
    if OF_DATA not in reader.state:
        raise CheckpointError(
            f"{reader.path} has no data module's hyperparameters: use a checkpoint of a fit that had a datamodule"
        )
    data = make(kind, reader, OF_DATA, allowed, overrides)
    state = reader.state.get("datamodule")
    if state:
        with fitting(reader, "the state of the data module"):
            data.load_state_dict(dict(state))
    return data


def _open(path: str | os.PathLike[str]) -> CheckpointReader:
    from stratagem_checkpoint import DirectoryCheckpointer

    return DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path_text("path", path))


def make(
    kind: type[T], reader: CheckpointReader, entry: str, allowed: Iterable[Any], overrides: Mapping[str, Any]
) -> T:
    """Call the class with the hyperparameters in a checkpoint, replaced by `overrides` where given."""
    try:
        saved = msgspec.convert(dict(reader.state.get(entry, {})), SavedHyperparameters)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{reader.path} is damaged: its hyperparameters are invalid ({error}); use another"
        ) from error
    named = named_by(kind, allowed)
    values = {
        name: decoded(value, named, f"the hyperparameter {name!r} of {reader.path}")
        for name, value in saved.values.items()
        if name not in overrides
    }
    arguments = dict(overrides)
    parameters = list(inspect.signature(kind).parameters.values())
    names = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if saved.whole is not None and saved.whole[0] not in arguments:
        name, form = saved.whole
        inner = {
            key: arguments.pop(key) for key in list(arguments) if key in saved.values and key not in names
        }
        arguments[name] = _whole({**values, **inner}, form, named, reader)
    elif saved.whole is None:
        called = set(saved.called) if takes_any else set()
        arguments.update({name: value for name, value in values.items() if name in names | called})
    unknown = sorted(set(arguments) - names) if not takes_any else []
    if unknown:
        raise ConfigError(
            f"{kind.__qualname__} takes no {unknown[0]!r}: load_from_checkpoint accepts the arguments of its "
            f"constructor, {', '.join(sorted(names)) or 'none'}"
        )
    required = [each.name for each in parameters if each.default is each.empty and each.name in names]
    missing = [name for name in required if name not in arguments]
    if missing:
        reason = saved.left_out.get(missing[0])
        why = f"which couldn't be saved: it {reason}" if reason else "which it doesn't have"
        raise ConfigError(
            f"{kind.__qualname__} needs {missing[0]!r} of {reader.path}, {why}; pass {missing[0]}=… to "
            "load_from_checkpoint, or call self.save_hyperparameters() in __init__ before training"
        )
    return kind(**arguments)


def _whole(values: Mapping[str, Any], form: str, named: Any, reader: Any) -> Any:
    if form == "attributes":
        return Hyperparameters(values)
    if form == "namespace":
        return Namespace(**values)
    return dataclass_named(form, named, f"{reader.path}'s hyperparameters")(**values)


def _load_weights(module: Module, reader: CheckpointReader, strict: bool) -> None:
    from stratagem_trainer.module.module import Module as Base

    if overrides(module, "load_state_dict", Base):
        _load_by_its_own_method(module, reader, strict)
        return
    state = module.state_dict()
    targets = {f"model/{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    extra = dict(dict(reader.state.get("prepared", {})).get("extra", {}))
    if strict:
        load_model(module, targets, reader, extra, targets.keys())
        return
    known = {name: target for name, target in targets.items() if name in reader.tensors}
    with torch.no_grad():
        reader.read(known)


def _load_by_its_own_method(module: Module, reader: CheckpointReader, strict: bool) -> None:
    saved = {name: info for name, info in reader.tensors.items() if name.startswith(MODEL)}
    tensors = {name: torch.empty(info.shape, dtype=info.dtype) for name, info in saved.items()}
    reader.read(tensors)
    extra = dict(dict(reader.state.get("prepared", {})).get("extra", {}))
    named = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}
    module.load_state_dict({**named, **extra}, strict=strict)
