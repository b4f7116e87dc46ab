"""The first place where two trainings of the same model differ: docs/guides/diff.md.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_diff.comparison import Comparison, Difference, compare
    from stratagem_diff.files import Place
    from stratagem_diff.recorder import RecordOptions
    from stratagem_diff.recording import record
    from stratagem_diff.sentences import sentence

__all__ = ["Comparison", "Difference", "Place", "RecordOptions", "compare", "record", "sentence"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".comparison": "Comparison Difference compare",
            ".files": "Place",
            ".recorder": "RecordOptions",
            ".recording": "record",
            ".sentences": "sentence",
        },
    )
