"""The place `kubernetes`: one pod per node. Its class is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_kubernetes.place import KubernetesPlace

__all__ = ["KubernetesPlace"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".place": "KubernetesPlace"})
