"""What is answered from a live run's collectives."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem import Runtime, Strategy
from stratagem.collectives.facade import RankFacade


class RecordingCollectives:
    rank, local_rank, world_size = 5, 1, 8

    def __init__(self) -> None:
        self.called: list[Any] = []

    def broadcast(self, value: Any, src: int) -> Any:
        self.called.append(("broadcast", src))
        return value + 1

    def barrier(self, name: str | None) -> None:
        self.called.append(("barrier", name))


def test_it_says_what_the_collectives_say() -> None:
    facade, reported = RankFacade(), RecordingCollectives()
    facade.collectives = reported  # type: ignore[misc]  # the runtime sets it later
    assert (facade.global_rank, facade.local_rank, facade.world_size) == (5, 1, 8)
    assert (facade.broadcast(1), facade.broadcast(1, 3)) == (2, 2)
    facade.barrier()
    facade.barrier("saved")
    assert reported.called == [("broadcast", 0), ("broadcast", 3), ("barrier", None), ("barrier", "saved")]


@pytest.mark.parametrize("owner", [Runtime, Strategy])
def test_runtimes_and_strategies_answer_by_it(owner: Any) -> None:
    names = [name for name in vars(RankFacade) if not name.startswith("_")]
    assert len(names) == 5
    assert all(getattr(owner, name) is getattr(RankFacade, name) for name in names)
