"""Parse JSON of untrusted files: of bounded size, and with one meaning."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from stratagem.errors import CheckpointError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A number of bytes, elements, steps or the like; bool and float are refused."""
MANIFEST_LIMIT_BYTES = 256 * 2**20
"""Some million chunks, or the checksums of eight terabytes."""
STATE_LIMIT_BYTES = 64 * 2**20
"""Arrays and tensors of a state aren't in its JSON."""
HEADER_LIMIT_BYTES = 100_000_000
"""Largest header of a safetensors file, as in the format's own library."""


def parse_json(text: bytes | memoryview) -> Any:
    """Parse strict JSON in UTF-8.

    Raises:
        ValueError: it isn't JSON, or an object has a key twice, a number that JSON lacks, or levels without end.
    """
    try:
        return json.loads(str(text, "utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_limit(size_bytes: int, limit_bytes: int, shown: str) -> None:
    """Refuse what is too long to be read into memory.

    Raises:
        CheckpointError: names `shown`, its length and the limit.
    """
    if size_bytes > limit_bytes:
        raise CheckpointError(
            f"{shown} has {size_bytes} bytes of JSON, allowed are {limit_bytes}: keep large data in tensors or "
            "arrays, or use another checkpoint if this one is damaged"
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # None, which is false, on purpose
        raise ValueError(f"it has the key {twice!r} twice in one object")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
