"""Proof that this rank is connected to ranks of the same run.

gloo accepts the first process that connects, and ranks unpickle the objects that they receive. Without a proof, a
foreign process could run its code in a rank.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from stratagem.errors import CollectiveError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not in __all__

    from stratagem.environments.base import Environment

_SIZE = 32


def require_own_ranks(store: Store, environment: Environment) -> None:
    """Check at every connection that the other process knows the run's secret. Collective.

    Call it before any object is unpickled. A proof is valid for one connection, in one direction, once.

    Args:
        store: of the default group, which is open and sends tensors on the CPU through gloo.
        environment: this process's rank, and the secret.

    Raises:
        CollectiveError: another process has taken a rank's connection.
    """
    rank, world_size = environment.global_rank, environment.world_size
    if rank == 0:
        store.set("nonce", secrets.token_hex(_SIZE))
    nonce = store.get("nonce")
    key = (environment.run_secret or "").encode()

    def proof(source: int, target: int) -> bytes:
        return hmac.digest(key, b"%b %d>%d" % (nonce, source, target), "sha256")

    shown = b"".join(proof(rank, other) for other in range(world_size))
    sent = torch.frombuffer(bytearray(shown), dtype=torch.uint8)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    seen = bytes(received.tolist())
    for other in range(world_size):
        if not hmac.compare_digest(seen[other * _SIZE : (other + 1) * _SIZE], proof(other, rank)):
            raise CollectiveError(
                f"rank {rank} of {world_size} isn't connected to rank {other} but to a process that doesn't know "
                "this run's secret; see docs/guides/security.md"
            )
