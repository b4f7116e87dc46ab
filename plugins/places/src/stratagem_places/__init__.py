"""Places: where a run's processes are brought up. A plugin that offers one derives it from `Place`.

Everything here is imported without torch, and when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_places.place import Place, PlaceStatus, state_of
    from stratagem_places.processes import is_process, started_at
    from stratagem_places.request import PlaceRequest
    from stratagem_places.run_record import PlacedRun

__all__ = ["Place", "PlaceRequest", "PlaceStatus", "PlacedRun", "is_process", "started_at", "state_of"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".place": "Place PlaceStatus state_of",
            ".processes": "is_process started_at",
            ".request": "PlaceRequest",
            ".run_record": "PlacedRun",
        },
    )
