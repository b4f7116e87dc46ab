"""Models and data of Hugging Face in Stratagem's Trainer; names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_huggingface.data import HFData
    from stratagem_huggingface.export import ExportPretrained
    from stratagem_huggingface.module import HFModule

__all__ = ["ExportPretrained", "HFData", "HFModule"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".data": "HFData",
            ".export": "ExportPretrained",
            ".module": "HFModule",
        },
    )
