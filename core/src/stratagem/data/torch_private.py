"""What the data's layer uses of torch's private names, each with the reason.

tests/core/data/test_torch_private.py fails when one changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher


def before_each_fetch(act: Callable[[Any], None]) -> None:
    """Call `act` with a batch's indices, or an item's index, before this process reads them from a map-style dataset.

    For loader workers, whose loop has no place where something could be done between two batches.
    """
    fetcher: Any = _MapDatasetFetcher
    fetch = fetcher.fetch

    def fetch_after(self: Any, indices: Any) -> Any:
        act(indices)
        return fetch(self, indices)

    # patch: worker fetch
    fetcher.fetch = fetch_after
