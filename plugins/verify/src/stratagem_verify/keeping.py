"""Check the data, the buffers and the optimizers of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stratagem_verify.compare import weights_apart
from stratagem_verify.observed import Seen
from stratagem_verify.runs import Form, Repetition
from stratagem_verify.session import Finding, NotRepeatedError, Session
from stratagem_verify.state import shown


def data(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that ranks read different samples of the same data."""
    for index, digests in enumerate(zip(*(seen.samples for seen in ranks))):
        if len({first for first, _ in digests}) > 1:
            other = next(rank for rank, pair in enumerate(digests) if pair[0] != digests[0][0])
            return Finding(
                "data",
                "wrong",
                f"sample {index + 1} of those that were read differs between rank 0 and rank {other}, though all "
                "generators had the same seed: the dataset shuffles itself or draws by rank, so that ranks share "
                "different data; let the sampler shuffle",
            )
    first = {seen.data_rank: seen for seen in ranks}
    repeats = len(set(ranks[0].batch_digests)) == 1
    if len(first) > 1 and not repeats and len({tuple(seen.batch_digests) for seen in first.values()}) == 1:
        return Finding(
            "data",
            "wrong",
            f"all {len(first)} ranks read the same batches: let each read its own share, with a DataLoader over a "
            "map-style dataset, or by self.trainer.global_rank",
        )
    own = sum(one != two for one, two in ranks[0].samples)
    if own:
        return Finding(
            "data",
            "note",
            "a sample that is read twice with the same seed differs: the dataset has its own generator, which "
            "checkpoints don't save",
        )
    if not ranks[0].samples:
        return Finding("data", "right", f"{len(first)} of {len(first)} ranks read different batches")
    return Finding(
        "data",
        "right",
        f"each of {len(first)} ranks reads its own share of a dataset that is the same on all",
    )


def buffers(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that buffers are equal on all ranks."""
    first = ranks[0]
    if not first.buffers:
        return Finding("buffers", "right", "there are none")
    apart: dict[str, tuple[Tensor, Tensor]] = {}
    for seen in ranks[1:]:
        for name, value in first.buffers.items():
            other = seen.buffers.get(name)
            if other is not None and value.shape == other.shape and not _close(value, other):
                apart.setdefault(name, (value, other))
    own = [name for name in apart if name not in first.normalization]
    rest = [name for name in first.buffers if name not in first.normalization and name in first.weights]
    if not own and session.form == "whole" and len({seen.data_rank for seen in ranks}) > 1:
        alone = session.repeated(Repetition("train", "whole", first.steps))
        found = weights_apart(first.weights, alone.weights, first.start, None, rest)
        if found is not None:
            own, apart[found[0]] = [found[0]], (first.weights[found[0]], alone.weights[found[0]])
            return Finding(
                "buffers",
                "wrong",
                f"{found[0]!r} isn't that of one process: its largest values are "
                f"{shown(_largest(apart[found[0]][0]))} and "
                f"{shown(_largest(apart[found[0]][1]))}; it is updated from one rank's data; use "
                "self.trainer.collectives.all_reduce",
            )
    if own:
        name = own[0]
        one, other = apart[name]
        return Finding(
            "buffers",
            "wrong",
            f"{name!r} differs between ranks: its largest values are {shown(_largest(one))} and "
            f"{shown(_largest(other))}; each updates it from its own data, and a checkpoint has the first rank's; "
            "update it with self.trainer.collectives.all_reduce",
        )
    if apart:
        return Finding(
            "buffers",
            "note",
            f"{len(apart)} running statistics of normalization layers differ between ranks, by definition, and a "
            "checkpoint has the first rank's: torch.nn.SyncBatchNorm keeps them equal",
        )
    return Finding("buffers", "right", f"{len(first.buffers)} equal on all {len(ranks)} ranks")


def optimizers(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that the optimizers have the module's parameters."""
    alone = None
    forms: tuple[Form, ...] = ("whole", "ranks", "same")
    for form in forms:
        try:
            alone = session.repeated(Repetition("train", form, ranks[0].steps))
            break
        except NotRepeatedError:
            continue
    if alone is None:
        return Finding("optimizers", "note", "not looked at, since one process can't repeat the steps")
    if alone.foreign:
        return Finding(
            "optimizers",
            "wrong",
            f"configure_optimizers returns {alone.foreign} tensors that aren't the module's parameters, such as "
            "copies: they are stepped, but the module isn't; pass self.parameters()",
        )
    still = [
        name
        for name in alone.trained
        if name in alone.weights and torch.equal(alone.weights[name], ranks[0].start[name])
    ]
    if still and len(still) == len(alone.trained):
        return Finding(
            "optimizers",
            "wrong",
            f"no parameter changes in {alone.steps} steps: configure_optimizers has other parameters than those "
            "that the loss depends on",
        )
    if alone.without_optimizer:
        return Finding(
            "optimizers",
            "note",
            f"{len(alone.without_optimizer)} parameters require gradients, but are in no optimizer, such as "
            f"{sorted(alone.without_optimizer)[0]!r}: freeze them with requires_grad_(False), or add them",
        )
    if still:
        return Finding(
            "optimizers",
            "note",
            f"{len(still)} of {len(alone.trained)} parameters never changed, such as {still[0]!r}",
        )
    return Finding(
        "optimizers", "right", f"all {len(alone.trained)} trained parameters are in one, and change"
    )


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-5, atol=1e-8, equal_nan=True)


def _largest(value: Tensor) -> Tensor:
    return value.double().abs().max() if value.numel() else value
