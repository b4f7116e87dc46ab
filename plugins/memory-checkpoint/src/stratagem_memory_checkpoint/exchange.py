"""Files on their way from one node's memory to another's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from stratagem_checkpoint import on_every_rank

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem import Collectives

CHUNK_BYTES = 1 << 26


class Chunk(NamedTuple):
    """Part of a file."""

    name: str
    start: int
    size_bytes: int


def copy_to_neighbours(
    collectives: Collectives, folder: str, mine: Sequence[str], node_unit: int = 1
) -> None:
    """Copy the files that this rank wrote to the next node's folder. Collective; does nothing on one node.

    Args:
        collectives: of all ranks.
        folder: of this node's checkpoint.
        mine: names of this rank's files in it.
        node_unit: number of nodes that a run loses together; see `neighbours`.

    Raises:
        CheckpointError: a file can't be read or written; on every rank.
    """
    sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in mine}
    gathered = collectives.gather_objects((collectives.node_rank, sizes))
    targets = neighbours([node for node, _ in gathered], node_unit)
    if not targets:
        return
    rank, chunks = collectives.rank, [list(_chunks(sizes)) for _, sizes in gathered]
    sources = [source for source, target in enumerate(targets) if target == rank]
    failures: list[str] = []
    for index in range(max(map(len, chunks))):
        transfers, received = [], []
        # A rank that can't read or write continues with the others, and all hear of it at the end.
        for source in sources:
            if index < len(chunks[source]):
                chunk = chunks[source][index]
                tensor = torch.empty(chunk.size_bytes, dtype=torch.uint8, device=collectives.device)
                received.append((chunk, tensor))
                transfers.append(_transfer(collectives, dist.irecv, tensor, source))
        if index < len(chunks[rank]):
            tensor = _read(folder, chunks[rank][index], failures).to(collectives.device)
            transfers.append(_transfer(collectives, dist.isend, tensor, targets[rank]))
        for work in dist.batch_isend_irecv(transfers) if transfers else ():
            work.wait()
        for chunk, tensor in received:
            _write(folder, chunk, tensor, failures)
    on_every_rank(collectives, lambda: _refuse(failures))


def neighbours(nodes: Sequence[int], node_unit: int = 1) -> list[int]:
    """Return for each rank the rank on the next node that keeps its files; nothing where there is one node.

    Args:
        nodes: of each rank its node.
        node_unit: number of nodes that a run loses together: the next node is one of the next unit, if there is one.
    """
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    order = sorted(by_node)
    if len(order) < 2:
        return []
    distance = node_unit if node_unit < len(order) else 1
    targets = []
    for rank, node in enumerate(nodes):
        there = by_node[order[(order.index(node) + distance) % len(order)]]
        targets.append(there[by_node[node].index(rank) % len(there)])
    return targets


def copy_missing(collectives: Collectives, folder: str, sizes: Mapping[str, int], shown: str) -> None:
    """Copy to each node's folder what it lacks. Collective.

    Args:
        collectives: of all ranks.
        folder: of this node's checkpoint.
        sizes: of all its files, in bytes.
        shown: how errors name the checkpoint.

    Raises:
        CheckpointError: no node has a file; or it can't be read or written; on every rank.
    """
    has = {name for name in sizes if _size(folder, name) == sizes[name]}
    of_ranks = collectives.gather_objects(has)
    failures: list[str] = []
    for name, size_bytes in sorted(sizes.items()):
        holders = [rank for rank, names in enumerate(of_ranks) if name in names]
        if not holders:
            raise CheckpointError(
                f"{shown} isn't whole any more: {name} was in the memory of nodes that are gone alone"
            )
        if len(holders) == len(of_ranks):
            continue
        writes = name not in has and collectives.local_rank == 0
        for chunk in _chunks({name: size_bytes}):
            own = collectives.rank == holders[0]
            empty = torch.empty(chunk.size_bytes, dtype=torch.uint8)
            tensor = _read(folder, chunk, failures) if own else empty
            tensor = collectives.broadcast(tensor.to(collectives.device), holders[0])
            if writes:
                _write(folder, chunk, tensor, failures)
    on_every_rank(collectives, lambda: _refuse(failures))


def _chunks(sizes: Mapping[str, int]) -> Iterator[Chunk]:
    for name, size_bytes in sizes.items():
        for start in range(0, size_bytes, CHUNK_BYTES):
            yield Chunk(name, start, min(CHUNK_BYTES, size_bytes - start))


def _size(folder: str, name: str) -> int | None:
    path = os.path.join(folder, name)
    return os.path.getsize(path) if os.path.isfile(path) else None


def _transfer(collectives: Collectives, way: object, tensor: torch.Tensor, peer: int) -> dist.P2POp:
    group = collectives.process_group
    return dist.P2POp(way, tensor, group=group, group_peer=peer)  # type: ignore[arg-type]  # dist.isend or dist.irecv


def _read(folder: str, chunk: Chunk, failures: list[str]) -> torch.Tensor:
    tensor = torch.zeros(chunk.size_bytes, dtype=torch.uint8)
    try:
        with open(os.path.join(folder, chunk.name), "rb") as file:
            file.seek(chunk.start)
            file.readinto(tensor.numpy().data)
    except OSError as error:
        failures.append(f"{chunk.name} can't be read: {error}")
    return tensor


def _write(folder: str, chunk: Chunk, tensor: torch.Tensor, failures: list[str]) -> None:
    try:
        with open(os.path.join(folder, chunk.name), "r+b" if chunk.start else "wb") as file:
            file.seek(chunk.start)
            file.write(tensor.cpu().numpy().data)
    except OSError as error:
        failures.append(f"{chunk.name} can't be written: {error}")


def _refuse(failures: Sequence[str]) -> None:
    if failures:
        raise CheckpointError(failures[0])
