"""Encode hyperparameters for checkpoints. Classes and functions are saved by name.

Loading never imports a name. A name stands for an object that the caller provides: one in the signature of the loaded
class, or in `allowed`. So a checkpoint can't make a program run code that it wouldn't run otherwise.
"""

from __future__ import annotations

import enum
import inspect
import typing
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import nn

from stratagem.errors import CheckpointError

MOST_BYTES = 2**20
"""Size limit of a tensor among hyperparameters."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range)
_TAG = "@"


class Unsaved(Exception):  # noqa: N818 - not an error: callers leave the value out of the checkpoint
    """A value that can't be saved in a checkpoint. The message is the reason, a clause for the subject "it"."""


def name_of(thing: Any) -> str:
    """Return the name of a class or function in checkpoints: "module:qualname"."""
    return f"{thing.__module__}:{thing.__qualname__}"


def encoded(value: Any, path: str) -> Any:
    """Return a value as a checkpoint's state may hold it.

    Raises:
        Unsaved: it can't be saved.
    """
    for kinds, encode in _ENCODERS:
        if isinstance(value, kinds):
            return encode(value, path)
    if inspect.isroutine(value) and "<" not in value.__qualname__ and value.__module__:
        return {f"{_TAG}name": name_of(value)}
    if is_dataclass(value):
        items = {
            field.name: encoded(getattr(value, field.name), path) for field in fields(value) if field.init
        }
        return {f"{_TAG}dataclass": [name_of(type(value)), items]}
    if callable(value) and "<" in getattr(value, "__qualname__", ""):
        raise Unsaved("has a function without its own name")
    raise Unsaved(f"has a {type(value).__module__}.{type(value).__qualname__}")


def decoded(value: Any, named: Mapping[str, Any], where: str) -> Any:
    """Return the value that `encoded` was called with.

    Args:
        value: an encoded value from a checkpoint.
        named: name → class or function, of those that the value may name.
        where: name of the value in error messages.

    Raises:
        CheckpointError: it names another class or function, or wasn't made by `encoded`.
    """
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(decoded(each, named, where) for each in value)
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not str(next(iter(value))).startswith(_TAG):
        return {key: decoded(each, named, where) for key, each in value.items()}
    ((tag, content),) = value.items()
    try:
        return _DECODERS[str(tag)[1:]](content, named, where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{where} can't be restored ({type(error).__name__}: {error}): pass it as an argument"
        ) from error


def named_by(kind: type, allowed: Iterable[Any]) -> dict[str, Any]:
    """Return name → object that checkpoints of `kind` may name: those in its signatures, and the `allowed` ones."""
    found: dict[str, Any] = {}
    for each in (*allowed, *_in_signatures(kind)):
        if hasattr(each, "__qualname__") and hasattr(each, "__module__"):
            found[name_of(each)] = each
    return found


def shown(value: Any) -> Any:
    """Return a value as JSON-serializable data for people to read."""
    if isinstance(value, np.generic) and not isinstance(value, (bool, int, float, str)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Namespace):
        return shown(vars(value))
    if isinstance(value, Mapping):
        return {str(key): shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shown(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: shown(getattr(value, field.name)) for field in fields(value)}
    return name_of(value) if hasattr(value, "__qualname__") else str(value)


def _in_signatures(kind: type) -> Iterator[Any]:
    seen: set[int] = set()
    for each in kind.__mro__:
        init = vars(each).get("__init__")
        if init is None or not inspect.isfunction(init):
            continue
        for parameter in inspect.signature(init).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                yield parameter.default
                yield type(parameter.default)
        try:
            hints = typing.get_type_hints(init)
        except (NameError, TypeError, AttributeError):
            hints = {}  # some names are imported for type checkers only
        for hint in hints.values():
            yield from _in_hint(hint, seen)


def _in_hint(hint: Any, seen: set[int]) -> Iterator[Any]:
    if id(hint) in seen:
        return
    seen.add(id(hint))
    for part in typing.get_args(hint):
        yield from _in_hint(part, seen)
    if isinstance(hint, type):
        yield hint
        if is_dataclass(hint):
            try:
                hints = typing.get_type_hints(hint)
            except (NameError, TypeError, AttributeError):
                hints = {}
            for inner in hints.values():
                yield from _in_hint(inner, seen)


def _named(name: str, named: Mapping[str, Any], where: str) -> Any:
    if name not in named:
        raise CheckpointError(
            f"{where} names {name}, which isn't in the signature of the class that is loaded: pass it as an "
            f"argument, or allowed=[{name.rpartition(':')[2]}]"
        )
    return named[name]


def dataclass_named(name: str, named: Mapping[str, Any], where: str) -> Any:
    """Return the dataclass with this name. Only dataclasses are called while loading.

    Raises:
        CheckpointError: the name isn't in `named`, or isn't a dataclass.
    """
    kind = _named(name, named, where)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise CheckpointError(
            f"{where} has a value of {name}, which is not a dataclass: use another checkpoint"
        )
    return kind


def _mapping(value: Mapping[Any, Any], path: str) -> Any:
    items = {key: encoded(each, path) for key, each in value.items()}
    if type(value) is not dict:
        return {f"{_TAG}attributes": {str(key): each for key, each in items.items()}}
    if any(isinstance(key, str) and key.startswith(_TAG) for key in items):
        return {f"{_TAG}dict": [[key, each] for key, each in items.items()]}
    return items


def _tensor(value: torch.Tensor, path: str) -> torch.Tensor:
    if type(value) is not torch.Tensor or value.nbytes > MOST_BYTES:
        raise Unsaved(f"is a {type(value).__name__} of {value.nbytes:,} bytes")
    return value.detach().cpu()


def _no_module(value: nn.Module, path: str) -> Any:
    raise Unsaved(f"has a module ({type(value).__qualname__}), whose weights are saved in checkpoints anyway")


def _partial(value: partial[Any], path: str) -> Any:
    items = [encoded(value.func, path), encoded(list(value.args), path), encoded(dict(value.keywords), path)]
    return {f"{_TAG}partial": items}


def _class(value: type, path: str) -> Any:
    if "<lambda>" in value.__qualname__:
        raise Unsaved("has a class without its own name")
    return {f"{_TAG}name": name_of(value)}


def _sequence(value: Any, path: str) -> Any:
    items = [encoded(each, path) for each in value]
    kind = type(value)
    return kind(items) if kind in (list, tuple, set, frozenset) else items


_ENCODERS: tuple[tuple[Any, Callable[[Any, str], Any]], ...] = (
    (type, _class),
    (enum.Enum, lambda value, path: {f"{_TAG}enum": [name_of(type(value)), value.name]}),
    (np.generic, lambda value, path: value.item()),
    (np.ndarray, lambda value, path: _tensor(torch.from_numpy(value.copy()), path).numpy()),
    (nn.Module, _no_module),
    (torch.Tensor, _tensor),
    (_PLAIN[1:], lambda value, path: value if type(value) in _PLAIN else _base(value)),
    (type(None), lambda value, path: value),
    (PurePath, lambda value, path: {f"{_TAG}path": str(value)}),
    (Namespace, lambda value, path: {f"{_TAG}namespace": encoded(vars(value), path)}),
    (Mapping, _mapping),
    (partial, _partial),
    ((list, tuple, set, frozenset), _sequence),
)
"""Types → function that encodes them. The first match is used."""


def _base(value: Any) -> Any:
    """Convert a value of a subclass of str, bytes or a number type to that type."""
    kinds: tuple[Callable[[Any], Any], ...] = (str, bytes, int, float, complex)
    return next(kind(value) for kind in kinds if isinstance(value, kind))  # type: ignore[arg-type]  # each is a class, too


def _partial_of(content: Any, named: Mapping[str, Any], where: str) -> Any:
    function, args, keywords = (decoded(each, named, where) for each in content)
    return partial(function, *args, **keywords)


def _enum_of(content: Any, named: Mapping[str, Any], where: str) -> Any:
    kind = _named(content[0], named, where)
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise ValueError(f"{content[0]} is not an enum")
    return kind[content[1]]


def _attributes(content: Any, named: Mapping[str, Any], where: str) -> Any:
    from stratagem_trainer.module.hyperparameters import Hyperparameters

    return Hyperparameters(decoded(dict(content), named, where))


_DECODERS: Mapping[str, Callable[[Any, Mapping[str, Any], str], Any]] = {
    "name": lambda content, named, where: _named(content, named, where),
    "enum": _enum_of,
    "path": lambda content, named, where: Path(content),
    "namespace": lambda content, named, where: Namespace(**decoded(content, named, where)),
    "attributes": _attributes,
    "dict": lambda content, named, where: {key: decoded(each, named, where) for key, each in content},
    "partial": _partial_of,
    "dataclass": lambda content, named, where: dataclass_named(content[0], named, where)(
        **decoded(content[1], named, where)
    ),
}
