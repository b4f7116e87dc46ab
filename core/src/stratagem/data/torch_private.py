"""Private names of torch that the data layer needs, each with the reason.

tests/core/data/test_torch_private.py fails when one changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher


def before_each_fetch(act: Callable[[Any], None]) -> None:
    """Call `act` with a batch's indices, or an item's index, before this process reads them from a map-style dataset.

    For loader workers. torch has no public hook between two batches in their loop.
    """
    fetcher: Any = _MapDatasetFetcher
    fetch = fetcher.fetch

    def fetch_after(self: Any, indices: Any) -> Any:
        act(indices)
        return fetch(self, indices)

    # patch: worker fetch
    fetcher.fetch = fetch_after
