"""`PowerSGDMemory`: PowerSGD's memory, by names of parameters instead of indices of buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from stratagem import ConfigError

if TYPE_CHECKING:
    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # exported, but not in __all__

Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class PickledPowerSGD:
    """A picklable form of a user's `PowerSGDState`, for sending it to workers.

    Unpickling torch's own class needs the process group, which a worker doesn't have yet when it gets the strategy.
    """

    slots: Mapping[str, Any]

    @classmethod
    def of(cls, state: PowerSGDState) -> PickledPowerSGD:
        """Take everything from a state except the process group.

        Raises:
            ConfigError: the state names a process group, which cannot be pickled for other processes.
        """
        if state.process_group is not None:
            raise ConfigError(
                "ddp_comm_state is a PowerSGDState with a process group, which can't be sent to the processes of "
                "the run: give PowerSGDState(None, ...), which means all ranks"
            )
        return cls({name: getattr(state, name) for name in state.__slots__ if name != "process_group"})

    def state(self) -> PowerSGDState:
        """Return the same state over all ranks."""
        made = PowerSGDState(process_group=None)
        for name, value in self.slots.items():
            setattr(made, name, value)
        return made


@dataclass(frozen=True)
class _Matrix:
    """A parameter in a bucket. PowerSGD treats its gradient as a matrix."""

    name: str
    rows: int
    columns: int
    rank: int
    """Columns of its two factors; 0 if it isn't compressed."""

    @property
    def size(self) -> int:
        return self.rows * self.columns


class PowerSGDMemory:
    """Runs torch's PowerSGD hook, and keeps its memory when the buckets change.

    Torch stores compression errors and factors by a bucket's index. DDP rebuilds buckets after its first
    backward, so a resumed run has other buckets than the interrupted run had. Stored by names of parameters, the
    memory survives both.

    Args:
        state: torch's state, before its first use.
        names: id of each parameter → its name.
    """

    def __init__(self, state: PowerSGDState, names: Mapping[int, str]) -> None:
        self.state = state
        self._names = names
        self._layouts: dict[int, tuple[_Matrix, ...]] = {}
        self._restored: tuple[Named, Named] = ({}, {})
        self._before: tuple[Named, Named] | None = None

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket's gradients."""
        state, index = self.state, bucket.index()
        if state.iter >= state.start_powerSGD_iter:
            matrices = tuple(map(self._matrix, bucket.parameters()))
            if index == 0:
                self._before = None
            if matrices != self._layouts.get(index):
                # Buckets come in order, so at the first one, the memory has nothing of this backward yet.
                self._before = self._before or self.remembered()
                self._lay_out(index, matrices, bucket.buffer(), *self._before)
            if bucket.is_last():
                self._before, self._restored = None, ({}, {})
        reduced = powerSGD_hook(state, bucket)
        if bucket.buffer().device.type == "cpu":
            # gloo's threads send a bucket's later messages, in any order relative to the next bucket's messages and
            # to DDP's own messages for unused parameters. Without this wait, ranks would mix them up.
            reduced.wait()
        return reduced

    def remembered(self) -> tuple[Named, Named]:
        """Return this rank's compression errors and the right factors, by name. Call it between two backwards."""
        errors, factors = dict(self._restored[0]), dict(self._restored[1])
        for index, matrices in self._layouts.items():
            lost = self.state.error_dict.get(index)
            if lost is not None:
                errors.update(_split(lost, [(matrix.name, matrix.size) for matrix in matrices]))
            found = self.state.q_memory_dict.get(index)
            if found is not None:
                sizes = [(matrix.name, matrix.columns * matrix.rank) for matrix in _compressed(matrices)]
                factors.update(_split(found, sizes))
        return errors, factors

    def rollback(self) -> Callable[[], None]:
        """Return a function that resets the memory to its current state. Call both between two backwards."""
        errors, factors = (
            {name: value.clone() for name, value in each.items()} for each in self.remembered()
        )
        counters = self.counters()

        def take_back() -> None:
            self.forget_layout()
            self.restore(errors, factors, counters)

        return take_back

    def forget_layout(self) -> None:
        """Keep the memory by name only, since the buckets will change. Call it between two backwards."""
        self._restored, self._layouts = self.remembered(), {}
        for memory in (self.state.error_dict, self.state.p_memory_dict, self.state.q_memory_dict):
            memory.clear()

    def restore(self, errors: Named, factors: Named, counters: Mapping[str, Any]) -> None:
        """Restore the results of `remembered` and `counters`."""
        self._restored = (errors, factors)
        self.state.iter = counters["iter"]
        kind, keys, *rest = counters["rng"]
        self.state.rng.set_state((kind, keys, *rest))

    def counters(self) -> dict[str, Any]:
        """Return the state's non-tensor values, which are the same on all ranks."""
        return {"iter": self.state.iter, "rng": list(self.state.rng.get_state())}

    def _lay_out(
        self, index: int, matrices: tuple[_Matrix, ...], like: torch.Tensor, errors: Named, factors: Named
    ) -> None:
        """Put the memory of these parameters where torch looks for it."""
        state = self.state
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.pop(index, None)
        if any(matrix.name in errors for matrix in matrices):
            # Parameters that weren't trained before have no error yet.
            lost = (errors.get(matrix.name, like.new_zeros(matrix.size)) for matrix in matrices)
            state.error_dict[index] = _joined(lost, like)
        compressed = _compressed(matrices)
        if compressed and all(matrix.name in factors for matrix in compressed):
            state.q_memory_dict[index] = _joined((factors[matrix.name] for matrix in compressed), like)
            # Uninitialized: left factors are computed from the right ones before they are read.
            state.p_memory_dict[index] = like.new_empty(
                sum(matrix.rows * matrix.rank for matrix in compressed)
            )
        self._layouts[index] = matrices

    def _matrix(self, parameter: torch.Tensor) -> _Matrix:
        name = self._names[id(parameter)]
        rows, columns = parameter.shape[0], parameter.numel() // max(1, parameter.shape[0])
        rank = min(rows, columns, self.state.matrix_approximation_rank)
        saves = (rows + columns) * rank * self.state.min_compression_rate < rows * columns
        return _Matrix(name, rows, columns, rank if saves else 0)


def _compressed(matrices: Iterable[_Matrix]) -> list[_Matrix]:
    """Return the compressed matrices in the order of torch's memory, grouped by shape."""
    shapes: dict[tuple[int, int], list[_Matrix]] = {}
    for matrix in matrices:
        if matrix.rank:
            shapes.setdefault((matrix.rows, matrix.columns), []).append(matrix)
    return [matrix for same in shapes.values() for matrix in same]


def _split(memory: torch.Tensor, sizes: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    parts = torch.split(memory, [size for _, size in sizes])
    return {name: part for (name, _), part in zip(sizes, parts)}


def _joined(parts: Iterable[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.to(like) for part in parts])
