"""Private names of torch that the kit uses, each with its reason.

plugins/testing/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def collective_calls() -> int:
    """Return how many collective calls this process has made in all of its groups.

    Groups count them to name one that hangs. torch.profiler counts them, too, but has ended a process by SIGSEGV
    where a communication hook in Python ran meanwhile.
    """
    if not dist.is_initialized():
        return 0
    groups: Any = dist.distributed_c10d._world.pg_map  # torch's stubs lack the number
    return sum(group._get_sequence_number_for_group() for group in groups)
