"""A step that raised, became non-finite or was chosen, kept so that it can be run again: docs/guides/replay.md.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_capsule.callback import Capsules
    from stratagem_capsule.errors import CapsuleError
    from stratagem_capsule.extension import Capsule
    from stratagem_capsule.replaying import replay
    from stratagem_capsule.report import Report

__all__ = ["Capsule", "CapsuleError", "Capsules", "Report", "replay"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".callback": "Capsules",
            ".errors": "CapsuleError",
            ".extension": "Capsule",
            ".replaying": "replay",
            ".report": "Report",
        },
    )
