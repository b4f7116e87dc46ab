"""The columns of the matrix: strategies, how each is set up here, and on how many devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from stratagem_testing import StrategySubject

_GROUP = {"timeout_s": 60}


@dataclass(frozen=True)
class Column:
    """A strategy on a number of devices: it writes one checkpoint, and reads those of all others."""

    label: str
    """How the page calls the strategy as it is set up."""
    strategy: str
    devices: int
    options: Mapping[str, Any] = field(default_factory=lambda: _GROUP)
    data_ranks: Callable[[int], int] | None = None
    accelerator: str = "cpu"
    own_processes: bool = False
    """Nothing else may run in its processes: an engine that a process starts once."""

    @property
    def name(self) -> str:
        """As "fsdp ×2"; one set up on a mesh of devices says so itself."""
        return self.label if "×" in self.label else f"{self.label} ×{self.devices}"

    def subject(self) -> StrategySubject:
        """What the kit runs."""
        subject = StrategySubject(
            self.strategy,
            accelerator=self.accelerator,
            options=self.options,
            data_ranks=self.data_ranks,
            own_processes=self.own_processes,
            timeout_s=900.0,
        )
        return subject.at(self.devices)


def one(world_size: int) -> int:
    """All ranks share one copy of the model, and read the same batches."""
    return 1


def half(world_size: int) -> int:
    """Pairs of ranks share a copy of the model."""
    return world_size // 2


def _at(column: Column, *sizes: int) -> list[Column]:
    return [replace(column, devices=size) for size in sizes]


def _on_cpu() -> list[Column]:
    from stratagem_model_parallel.conformance import shards_of_batches, whatever_can_be

    cut = {**_GROUP, "parallelize": shards_of_batches}
    split = {**_GROUP, "parallelize": whatever_can_be}
    columns = [
        Column("single", "single", 1, {}),
        *_at(Column("ddp", "ddp", 1), 1, 2, 4),
        *_at(Column("fsdp", "fsdp", 1), 1, 2, 4),
        Column(
            "fsdp, hybrid 2×2",
            "fsdp",
            4,
            {**_GROUP, "sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2)},
        ),
        *_at(Column("ddp_sharded", "ddp_sharded", 1), 1, 2, 4),
        *_at(Column("ddp_fully_sharded", "ddp_fully_sharded", 1), 1, 2, 4),
        *_at(Column("model_parallel", "model_parallel", 1, split, one), 1, 2, 4),
        Column("model_parallel, 2-D 2×2", "model_parallel", 4, {**split, "tensor_parallel_size": 2}, half),
        *_at(Column("pipeline", "pipeline", 1, data_ranks=one), 1, 2, 4),
        *_at(Column("context_parallel", "context_parallel", 1, cut, one), 1, 2, 4),
        Column("context_parallel, 2-D 2×2", "context_parallel", 4, {**cut, "context_parallel_size": 2}, half),
        *_at(Column("bagua", "bagua", 1), 1, 2, 4),
        *_compositions(
            {"tensor": {"parallelize": whatever_can_be}, "context": {"parallelize": shards_of_batches}}
        ),
    ]
    if find_spec("deepspeed") is not None:
        from stratagem_deepspeed.conformance import SMALL

        for stage in (1, 2, 3):
            name = f"deepspeed_stage_{stage}"
            columns += _at(Column(name, name, 1, SMALL, own_processes=True), 1, 2, 4)
    if find_spec("fairscale") is not None:
        columns += [
            *_at(Column("fairscale_sharded", "fairscale_sharded", 1), 1, 2, 4),
            *_at(Column("fairscale_pipe", "fairscale_pipe", 1, {}), 1, 2, 4),
        ]
    return columns


def _compositions(axis_options: Mapping[str, Mapping[str, Any]]) -> list[Column]:
    """Return columns of pairs of axes, two ranks along each. The model has no experts for `expert`."""
    data_ranks = {
        "replicate=2+shard=2": None,
        "shard=2+tensor=2": half,
        "shard=2+context=2": half,
        "context=2+tensor=2": one,
        "pipeline=2+shard=2": half,
        "pipeline=2+tensor=2": one,
    }
    return [
        Column(
            axes,
            "composition",
            4,
            {
                **_GROUP,
                "axes": axes,
                "axis_options": {name: each for name, each in axis_options.items() if name in axes},
            },
            ranks,
        )
        for axes, ranks in data_ranks.items()
    ]


def _on_horovod() -> list[Column]:
    return _at(Column("horovod", "horovod", 1, {**_GROUP, "scale_lr": False}), 1, 2, 4)


def _on_xla() -> list[Column]:
    column = Column("xla", "xla", 1, {}, accelerator="xla", own_processes=True, data_ranks=one)
    sharded = replace(column, label="xla_fsdp", strategy="xla_fsdp")
    return [
        replace(column, label="single_xla", strategy="single_xla"),
        *_at(column, 2, 4),
        *_at(sharded, 2, 4),
    ]


def columns_here() -> dict[str, Column]:
    """Return the columns that can run with what is installed here, by name.

    Engines with an environment of their own are tried there alone.
    """
    if find_spec("torch_xla") is not None:
        chosen = _on_xla()
    elif find_spec("horovod") is not None:
        chosen = _on_horovod()
    else:
        chosen = _on_cpu()
    return {column.name: column for column in chosen}


def column_names() -> list[str]:
    """Return the names of all columns, wherever they run."""
    return [column.name for column in (*_on_cpu(), *_on_horovod(), *_on_xla())]


SHORT = ("ddp ×2", "fsdp ×2", "ddp_sharded ×2", "model_parallel ×2", "pipeline ×2")
"""What `make test` tries among each other."""
