"""Nested state as strict JSON, with tensors and arrays stored separately.

JSON's own values stand for themselves. Everything else is an object with a single key that begins
with "$": {"$tuple": [...]}, {"$bytes": "base64"}, {"$tensor": ["3", "float32", [2]]}. Decoding builds exactly these
types and nothing else, so that no file can make it run code: of a defaultdict, the factory is one of a few
built-in types by its name.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from stratagem.errors import CheckpointError
from stratagem_checkpoint.safetensors_file import DTYPES, refusal
from stratagem_checkpoint.strict_json import Count, parse_json

GetTensor = Callable[[str, torch.dtype, Sequence[int]], torch.Tensor]
"""Returns a tensor, given its name, dtype and shape."""

ALLOWED = (
    "dict, list, tuple, set, Counter, deque, defaultdict, range, numbers, strings, bytes, None, tensors, torch.Size, "
    "torch.dtype, torch.device and numpy arrays"
)

_UNCHANGED = (type(None), bool, int, str)
_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered_dict", Counter: "$counter"}
_FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)
}


def encode_state(value: Any, name: str) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Encode nested state.

    Args:
        value: dicts (any encodable keys), OrderedDicts, lists, tuples, sets, frozensets, None, bool, int,
            float (nan and infinities too), complex, str, bytes, Counters, deques, defaultdicts of built-in types,
            ranges, torch's sizes, dtypes and devices, plain tensors on any device, numpy arrays
            and scalars of numbers. Subclasses of these are refused, since they would come back as
            something else.
        name: what errors call it, as "state".

    Returns:
        JSON text in ASCII, and the tensors that it refers to by name.

    Raises:
        CheckpointError: something else is in it; names where and its type.
    """
    encoder = _Encoder()
    document = encoder.encode(value, name)
    return json.dumps(document, allow_nan=False).encode("ascii"), encoder.tensors


def decode_state(text: bytes | memoryview, tensor: GetTensor, shown: str) -> Any:
    """Rebuild what `encode_state` was given; tensors and arrays come back on the CPU.

    Args:
        text: the JSON.
        tensor: called for each tensor in it.
        shown: how errors name the file.

    Raises:
        CheckpointError: the text isn't such JSON.
    """
    try:
        return _decode(parse_json(text), tensor)
    except (ValueError, KeyError, TypeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{shown} is damaged: {error}; use another checkpoint") from error


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._open: set[int] = set()

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _UNCHANGED:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is complex:
            return {"$complex": [self.encode(value.real, path), self.encode(value.imag, path)]}
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, path)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if kind in (torch.dtype, torch.device):
            return {f"${kind.__name__}": str(value).removeprefix("torch.")}
        if kind is range:
            return {"$range": [value.start, value.stop, value.step]}
        if kind in _CONTAINERS:
            return self._container(value, path)
        raise CheckpointError(
            f"{path} can't be saved: it is a {kind.__module__}.{kind.__qualname__}, allowed are {ALLOWED}; "
            "convert it in the state_dict() that it comes from"
        )

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self._open:
            raise CheckpointError(f"{path} can't be saved: it contains itself")
        if len(self._open) >= 100:
            raise CheckpointError(f"{path[:80]}… can't be saved: it is nested deeper than 100 levels")
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                return self._mapping(value, path)
            # Python's random state alone has 625 integers: no call and no path for each of them.
            items = [
                each if type(each) in _UNCHANGED else self.encode(each, f"{path}[{number}]")
                for number, each in enumerate(value)
            ]
            if type(value) is deque:
                return {"$deque": [items, value.maxlen]}
            return items if type(value) is list else {f"${type(value).__name__.lower()}": items}
        finally:
            self._open.discard(id(value))

    def _mapping(self, value: dict[Any, Any], path: str) -> Any:
        plain = all(type(key) is str and not key.startswith("$") for key in value)
        if type(value) is dict and plain:
            return {key: self.encode(each, f"{path}[{key!r}]") for key, each in value.items()}
        pairs = [
            [self.encode(key, f"the key {key!r} of {path}"), self.encode(each, f"{path}[{key!r}]")]
            for key, each in value.items()
        ]
        if isinstance(value, defaultdict):
            factory = value.default_factory
            if factory is not None and factory not in _FACTORIES.values():
                raise CheckpointError(
                    f"{path} can't be saved: it is a defaultdict of {factory!r}, allowed are {', '.join(_FACTORIES)}"
                )
            return {"$defaultdict": [None if factory is None else factory.__name__, pairs]}
        return {_MAPPINGS[type(value)]: pairs}

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise CheckpointError(
                f"{path} can't be saved: it is a {type(value).__name__}; sharded tensors belong among the "
                "checkpoint's tensors, not in its state"
            )
        reason = refusal(value)
        if reason:
            raise CheckpointError(f"{path} can't be saved: it {reason}")
        return {"$tensor": self._keep(value.detach())}

    def _array(self, value: np.ndarray[Any, Any] | np.generic, path: str) -> Any:
        array = np.asarray(value)
        try:
            # A copy in this machine's byte order; torch takes neither foreign order nor negative strides.
            tensor = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        except TypeError:
            tensor = None
        reason = f"has dtype {array.dtype}" if tensor is None else refusal(tensor)
        if tensor is None or reason or type(value) not in (np.ndarray, array.dtype.type):
            reason = reason or f"is a {type(value).__qualname__}"
            raise CheckpointError(
                f"{path} can't be saved: this numpy value {reason}; allowed are arrays of numbers"
            )
        return {"$array" if isinstance(value, np.ndarray) else "$scalar": self._keep(tensor)}

    def _keep(self, tensor: torch.Tensor) -> list[Any]:
        name = str(len(self.tensors))
        self.tensors[name] = tensor
        return [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def _decode(value: Any, tensor: GetTensor) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensor) for each in value]
    if not isinstance(value, dict):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("it has a number that is too large")
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(each, tensor) for key, each in value.items()}
    if len(value) > 1 or tag not in _KINDS:
        raise ValueError(f"it has a value of the unknown kind {tag!r}")
    kind, build = _KINDS[tag]
    try:
        content = msgspec.convert(_decode(value[tag], tensor), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"it has a {tag} that is none ({error})") from error
    if tag in ("$tensor", "$array", "$scalar"):
        content = tensor(content[0], DTYPES[content[1]], list(content[2]))
    return build(content)


_CONTAINERS = (*_MAPPINGS, defaultdict, deque, list, tuple, set, frozenset, torch.Size)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"it has the unknown dtype {name!r}")
    return found


def _without_twins(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("it has a dict with a key twice")
    return made


_Pairs = list[tuple[Any, Any]]
_Tensor = tuple[str, str, tuple[Count, ...]]

_KINDS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "$tensor": (_Tensor, lambda tensor: tensor),
    "$array": (_Tensor, lambda tensor: tensor.numpy()),
    "$scalar": (_Tensor, lambda tensor: tensor.numpy()[()]),
    "$counter": (_Pairs, lambda pairs: Counter(_without_twins(pairs))),
    "$defaultdict": (
        tuple[str | None, _Pairs],
        lambda parts: defaultdict(parts[0] and _FACTORIES[parts[0]], _without_twins(parts[1])),
    ),
    "$deque": (tuple[list[Any], Count | None], lambda parts: deque(parts[0], maxlen=parts[1])),
    "$device": (str, torch.device),
    "$dtype": (str, _dtype),
    "$range": (tuple[int, int, int], lambda parts: range(*parts)),
    "$size": (list[Count], torch.Size),
    "$float": (Literal["nan", "inf", "-inf"], float),
    "$complex": (tuple[float, float], lambda parts: complex(*parts)),
    "$bytes": (str, lambda text: base64.b64decode(text, validate=True)),
    "$tuple": (list[Any], tuple),
    "$set": (list[Any], set),
    "$frozenset": (list[Any], frozenset),
    "$dict": (_Pairs, _without_twins),
    "$ordered_dict": (_Pairs, lambda pairs: OrderedDict(_without_twins(pairs))),
}
"""Tag → the type that its decoded content must have, and the function that builds the value from it."""
