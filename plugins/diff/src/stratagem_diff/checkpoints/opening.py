"""`SavedState`: the tensors of a checkpoint by place, read from its files where they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from stratagem_convert.formats import own
from stratagem_convert.formats.converting import format_of, read_weights
from stratagem_convert.formats.stored import StoredTensor, Weights, WeightsReader, block_rows
from stratagem_convert.tools.inspecting import summarize
from torch import Tensor

from stratagem.errors import CheckpointError
from stratagem_diff.files import Place

CHECKPOINTS = "checkpoints"
"""Folder of a run that has its checkpoints."""
LAST = "last"
"""Name in it of the newest one, if the run keeps one under that name."""
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of torch's norms, which are floating-point as parameters are."""
OF_OPTIMIZER = "optimizer state"


@dataclass(frozen=True)
class SavedState:
    """An opened checkpoint."""

    path: str
    """Of the checkpoint; of a run's last one where the run was given."""
    tensors: Mapping[Place, StoredTensor | Tensor]
    """Parameters and buffers in the order of the checkpoint, then states of optimizers."""
    aliases: Mapping[str, str]
    """Further name of a tensor that has several → the name that has the values."""
    facts: Mapping[str, str]
    """What is known besides, such as step, epoch, strategy and ranks."""
    settings: Sequence[Mapping[str, Any]]
    """Settings of the optimizers' parameter groups."""
    reader: WeightsReader

    @property
    def step(self) -> int | None:
        """Optimizer steps before it; None where it doesn't say."""
        text = self.facts.get("step", self.facts.get("global_step", ""))
        return int(text) if text.isdecimal() else None

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it; 1 where it doesn't say."""
        text = self.facts.get("ranks", "1")
        return int(text) if text.isdecimal() else 1

    def describe(self) -> str:
        """Return what it is, in one line."""
        words = [f"step {self.step}"] if self.step is not None else []
        words += [f"{key} {self.facts[key]}" for key in ("strategy", "ranks") if key in self.facts]
        return ", ".join([self.path, *words])

    def blocks(self, places: Sequence[tuple[SavedState, Place]]) -> Iterator[list[Tensor]]:
        """Yield the same rows of several tensors of one shape, some at a time."""
        stored = [state.tensors[place] for state, place in places]
        in_files = [each for each in stored if isinstance(each, StoredTensor)]
        if not in_files:
            yield [each for each in stored if isinstance(each, Tensor)]
            return
        for begin, end in block_rows(in_files):
            yield [state.rows(place, begin, end) for state, place in places]

    def rows(self, place: Place, begin: int, end: int) -> Tensor:
        """Return rows of a tensor; one without dims is a single row."""
        stored = self.tensors[place]
        if isinstance(stored, StoredTensor):
            return self.reader.rows(stored, begin, end)
        return stored.reshape(stored.shape or (1,))[begin:end]

    def whole(self, place: Place) -> Tensor:
        """Return a whole tensor."""
        stored = self.tensors[place]
        return self.reader.read(stored) if isinstance(stored, StoredTensor) else stored


def is_checkpoint(path: str) -> bool:
    """Whether there is a checkpoint at a path, or a run that has some."""
    if "://" in path or Path(path, CHECKPOINTS).is_dir():
        return True
    try:
        return bool(format_of(path))
    except CheckpointError:
        return False


@contextmanager
def open_state(path: str) -> Iterator[SavedState]:
    """Open a checkpoint of Stratagem or of another format, or a run's last one. Runs no code of it.

    Raises:
        CheckpointError: there is none, it is damaged, or it has something else than tensors.
    """
    path = _last_of(path)
    weights = read_weights(path)
    facts = summarize(path)["facts"] if weights.format == "stratagem" else dict(weights.facts)
    with WeightsReader(weights) as reader:
        training = weights.training
        yield SavedState(
            path=path,
            tensors=_tensors(weights),
            aliases=weights.aliases,
            facts=facts,
            settings=[
                {key: value for key, value in group.items() if key not in ("params", "param_names")}
                for optimizer in (training.optimizers if training is not None else ())
                for group in optimizer.groups
            ],
            reader=reader,
        )


def _last_of(path: str) -> str:
    folder = Path(path, CHECKPOINTS)
    if "://" in path or own.is_directory(path) or not folder.is_dir():
        return path
    last = folder / LAST
    if own.is_directory(str(last)):
        return str(last)
    found = [str(each) for each in sorted(folder.iterdir()) if own.is_directory(str(each))]
    if not found:
        raise CheckpointError(f"{folder} has no checkpoint: give the folder or the file of one")
    return max(found, key=lambda each: int(read_weights(each).facts.get("global_step", "0")))


def _tensors(weights: Weights) -> dict[Place, StoredTensor | Tensor]:
    optimizers = weights.training.optimizers if weights.training is not None else ()
    stepped = {name for optimizer in optimizers for name in optimizer.names()}
    found: dict[Place, StoredTensor | Tensor] = {}
    for name in weights.names():
        stored = weights.stored(name)
        is_buffer = not stored.dtype.is_floating_point or name.rpartition(".")[2] in _BUFFERS
        kind = "buffer" if is_buffer and name not in stepped else "parameter"
        found[Place(0, kind, name)] = stored
    for index, optimizer in enumerate(optimizers):
        for name in optimizer.names():
            for item, value in optimizer.states.get(name, {}).items():
                place = Place(0, OF_OPTIMIZER, name, index, item)
                if isinstance(value, (StoredTensor, Tensor)):
                    found[place] = value
                elif isinstance(value, (bool, int, float)):
                    found[place] = torch.as_tensor(value)
    return found
