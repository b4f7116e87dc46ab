"""What the data's layer takes from torch's private names still is what it takes it for."""

import pytest
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch

from stratagem.data.torch_private import before_each_fetch


def test_each_batch_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch._MapDatasetFetcher, "fetch", fetch._MapDatasetFetcher.fetch)
    seen: list[object] = []
    before_each_fetch(seen.append)
    assert [batch.tolist() for batch in DataLoader(range(5), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert seen == [[0, 1], [2, 3], [4]]
