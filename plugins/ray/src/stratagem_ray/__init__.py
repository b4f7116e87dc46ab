"""The place `ray`: one actor per node of a Ray cluster. Its class is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_ray.place import RayPlace

__all__ = ["RayPlace"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".place": "RayPlace"})
