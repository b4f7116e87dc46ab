"""What the kit uses of torch's own is as it expects; a change of torch shows here."""

from __future__ import annotations

from stratagem_testing.torch_private import collective_calls
from stratagem_testing.workers import Workers


def _counted() -> tuple[int, int, int]:
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from stratagem_clusters import TorchElastic

    from stratagem import ProcessGroupCollectives

    none = collective_calls()
    opened = ProcessGroupCollectives(
        TorchElastic(os.environ), torch.device("cpu"), "gloo", timedelta(seconds=60)
    )
    before = collective_calls()
    dist.all_reduce(torch.ones(2))
    dist.broadcast(torch.ones(2), 0)
    after = collective_calls()
    opened.close()
    return none, after - before, collective_calls()


def test_groups_count_their_collective_calls() -> None:
    workers = Workers()
    assert workers.run(2, _counted) == [(0, 2, 0)] * 2
    workers.close()
