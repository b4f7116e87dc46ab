"""Bugs of programs on FairScale's sharded optimizer and its data parallelism."""

from __future__ import annotations

from fairscale.nn import ShardedDataParallel
from fairscale.optim import OSS
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD

from tests.corpus.bug import Bug, Case, batches, make_net

LIMIT = 0.05


def _train(case: Case, *, in_buckets: bool, to_none: bool, limit: float | None = None) -> None:
    net = model = make_net()
    if case.is_reference:
        optimizer = SGD(net.parameters(), lr=0.1)
    else:
        optimizer = OSS(net.parameters(), SGD, lr=0.1)
        buckets = {} if in_buckets else {"reduce_buffer_size": 0}
        model = ShardedDataParallel(net, optimizer, **buckets)
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(model(case.own(rows)), case.own(targets)).backward()
            if limit is not None and case.form == "right":
                optimizer.clip_grad_norm(limit)
            elif limit is not None:
                nn.utils.clip_grad_norm_(net.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)


def clipped_by_own_gradients(case: Case) -> None:
    """Each rank clips by the norm of the gradients that it has, and not by the sharded optimizer's method."""
    _train(case, in_buckets=False, to_none=True, limit=LIMIT)


def gradients_outside_buckets(case: Case) -> None:
    """`zero_grad` sets gradients to None, so that new ones aren't in the buckets that are sent."""
    _train(case, in_buckets=True, to_none=case.is_wrong)


BUGS = (
    Bug(
        clipped_by_own_gradients,
        "clipping",
        "FairScale",
        "https://github.com/huggingface/transformers/pull/9168",
        "parameter gradient *",
    ),
    Bug(
        gradients_outside_buckets,
        "accumulation",
        "FairScale",
        "https://github.com/facebookresearch/fairscale/issues/354",
        "parameter gradient *",
    ),
)
"""In the order of docs/corpus.md."""
