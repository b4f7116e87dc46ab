"""Ring attention: each rank computes all heads for its own queries; keys and values pass from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from stratagem.errors import DataError
from stratagem_model_parallel.context.masks import of_queries
from stratagem_model_parallel.context.ranks import SequenceRanks


class _RingOptions(NamedTuple):
    ranks: SequenceRanks
    scale: float
    is_causal: bool


def ring(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    ranks: SequenceRanks,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return this rank's shard of `scaled_dot_product_attention` over full sequences. Collective.

    Ring attention (Liu et al., https://arxiv.org/abs/2310.01889): the softmax is accumulated over shards of the
    keys, and backward recomputes the scores. Matrix products use at least float32; only the scores of one shard of
    queries by one shard of keys are in memory at a time.

    Args:
        query: (batch, heads, tokens of this rank, width).
        key: as query; its heads may be fewer under `enable_gqa`.
        value: as key.
        mask: of full sequences: added to the scores, or bool with True where a query may attend.
        ranks: the ranks among which sequences are sharded.
        dropout_p: must be 0.
        is_causal: whether a token only attends to itself and to tokens before it.
        scale: of scores; None is 1 / sqrt(width).
        enable_gqa: whether each head of keys and values serves several heads of queries.

    Raises:
        DataError: dropout isn't 0, the mask requires a gradient, both a mask and is_causal are given, or the numbers
            of heads don't fit.
    """
    if dropout_p:
        raise DataError(
            f'attention="ring" has no dropout within attention, and got {dropout_p}: set it to 0, or choose '
            'attention="ulysses"'
        )
    if mask is not None and mask.requires_grad:
        raise DataError(
            'attention="ring" has no gradients of a mask, and got one that requires them, as a learned bias of '
            'positions does: choose attention="ulysses"'
        )
    if mask is not None and is_causal:
        raise DataError("attention got a mask and is_causal=True: give one of them")
    heads, few = query.shape[1], key.shape[1]
    if heads % few or (heads != few and not enable_gqa):
        raise DataError(
            f"attention got {heads} heads of queries and {few} of keys: give equally many, or enable_gqa=True with a "
            f"number that divides {heads}"
        )
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    how = _RingOptions(ranks, query.shape[-1] ** -0.5 if scale is None else scale, is_causal)
    rows = _grouped(of_queries(mask, ranks), few)
    with torch.autocast(query.device.type, enabled=False):
        grouped = query.reshape(len(query), few, heads // few, *query.shape[2:])
        out = _Ring.apply(grouped, key, value, rows, how)  # type: ignore[no-untyped-call]  # torch has no types for it
    attended: torch.Tensor = out.flatten(1, 2)
    return attended


class _Ring(torch.autograd.Function):
    """Queries are (batch, heads of keys, queries per head, tokens, width), masks as scores are."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        how: _RingOptions,
    ) -> torch.Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        q = query.to(dtype)
        batch, few, group, tokens, _ = q.shape
        # Tokens first in memory, so that joining the heads is a view.
        out = q.new_zeros(batch, tokens, few, group, value.shape[-1]).permute(0, 2, 3, 1, 4)
        total = q.new_full(q.shape[:-1], float("-inf"))
        for source, (k, v) in _round(how.ranks, key, value):
            scores = _scores(q, k.to(dtype), mask, source, how)
            if scores is None:
                continue
            before, total = total, torch.logaddexp(total, scores.logsumexp(-1))
            level = _finite(total)
            out *= (before - level).exp().unsqueeze(-1)
            out += (scores - level.unsqueeze(-1)).exp() @ v.to(dtype).unsqueeze(2)
        out = out.to(query.dtype)
        ctx.how = how
        ctx.save_for_backward(query, key, value, mask, out, total)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value, mask, out, total = ctx.saved_tensors
        how, dtype = ctx.how, total.dtype
        q, grad = query.to(dtype), grad.to(dtype)
        level, inner = _finite(total).unsqueeze(-1), (grad * out).sum(-1, keepdim=True)
        grad_q = torch.zeros_like(q)
        # The gradients of each shard of keys and values travel with it, and return with it to its own rank.
        grad_k, grad_v = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (key, value))
        travelling = [key, value, grad_k, grad_v]
        for step in range(how.ranks.size):
            source = (how.ranks.rank - step) % how.ranks.size
            k, v, grad_k, grad_v = travelling
            k, v = k.to(dtype).unsqueeze(2), v.to(dtype).unsqueeze(2)
            scores = _scores(q, k.squeeze(2), mask, source, how)
            if scores is not None:
                weights = (scores - level).exp()
                grad_scores = weights * (grad @ v.transpose(-1, -2) - inner) * how.scale
                grad_q += grad_scores @ k
                grad_k += (grad_scores.transpose(-1, -2) @ q).sum(2)
                grad_v += (weights.transpose(-1, -2) @ grad).sum(2)
            travelling = _Passed(how.ranks, travelling).received()
        _, _, grad_k, grad_v = travelling
        return grad_q.to(query.dtype), grad_k.to(key.dtype), grad_v.to(value.dtype), None, None


class _Passed:
    """An asynchronous send of tensors to the next rank, and receive from the previous one. Collective."""

    def __init__(self, ranks: SequenceRanks, tensors: list[torch.Tensor]) -> None:
        after, before = (
            dist.get_global_rank(ranks.group, (ranks.rank + way) % ranks.size) for way in (1, -1)
        )
        self._sent = [tensor.contiguous() for tensor in tensors]
        self._received = [torch.empty_like(tensor) for tensor in self._sent]
        sends = [dist.P2POp(dist.isend, x, after, ranks.group, tag) for tag, x in enumerate(self._sent)]
        receipts = [
            dist.P2POp(dist.irecv, x, before, ranks.group, tag) for tag, x in enumerate(self._received)
        ]
        self._work = dist.batch_isend_irecv([*sends, *receipts])

    def received(self) -> list[torch.Tensor]:
        """Wait for both, and return the received tensors."""
        for work in self._work:
            work.wait()
        return self._received


def _round(ranks: SequenceRanks, *own: torch.Tensor) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield each rank's tensors, this rank's first, while the next ones are in flight. Collective."""
    here = list(own)
    for step in range(ranks.size):
        is_last = step == ranks.size - 1
        passed = None if is_last else _Passed(ranks, here)
        yield (ranks.rank - step) % ranks.size, here
        if passed is not None:
            here = passed.received()


def _scores(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, source: int, how: _RingOptions
) -> torch.Tensor | None:
    """Return scores of this rank's queries and rank `source`'s keys; None if no query may attend to them."""
    if how.is_causal and source > how.ranks.rank:
        return None
    scores = q @ k.unsqueeze(2).transpose(-1, -2) * how.scale
    if how.is_causal and source == how.ranks.rank:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        scores.masked_fill_(later, float("-inf"))
    if mask is not None:
        columns = mask if mask.shape[-1] == 1 else mask.narrow(-1, source * k.shape[-2], k.shape[-2])
        if mask.dtype is torch.bool:
            scores = scores.masked_fill(~columns, float("-inf"))
        else:
            scores = scores + columns.to(scores.dtype)
    return scores


def _finite(total: torch.Tensor) -> torch.Tensor:
    """Replace -inf of queries that may attend to nothing, so that their output and gradients are 0."""
    return total.masked_fill(total == float("-inf"), 0)


def _grouped(mask: torch.Tensor | None, few: int) -> torch.Tensor | None:
    """Reshape a mask to five dimensions, like the scores."""
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1] == 1:
        return mask.unsqueeze(2)
    return mask.reshape(len(mask), few, mask.shape[1] // few, *mask.shape[2:])
