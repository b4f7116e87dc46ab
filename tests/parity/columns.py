"""The columns of the table: strategies, how each is set up here, and at how many devices it is tried."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem_deepspeed.conformance import SMALL
from stratagem_model_parallel.conformance import shards_of_batches, whatever_can_be

TIMEOUT_S = 20
"""Of the process groups: a collective that a rank never comes to ends with an error after it."""
ACCELERATOR = os.environ.get("PARITY_ACCELERATOR", "cpu")
"""On which strategies are tried; `make gpu` tries some on cuda. Plain loops run on the CPU."""


@dataclass(frozen=True)
class Column:
    """A strategy at a number of devices."""

    strategy: Any
    """A name; or a class, where the table itself is tried."""
    devices: int = 2
    processes: int = 2
    copies: int = 2
    """Among how many ranks the data are shared."""
    parts: int = 1
    """Into how many parts a rank splits its batch, each with a loss of its own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerances: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """Kind → another tolerance here, and why."""
    own_processes: bool = False
    """Nothing else may run in its processes: an engine that a process starts once."""

    @property
    def name(self) -> str:
        """How the table calls it."""
        return self.strategy if self.devices in (1, 2) else f"{self.strategy} ×{self.devices}"


_GROUP = {"timeout_s": TIMEOUT_S}
_ENGINE = {**SMALL, "timeout_s": TIMEOUT_S}


def _engine(stage: int) -> Column:
    return Column(f"deepspeed_stage_{stage}", options=_ENGINE, own_processes=True)


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("single", devices=1, processes=1, copies=1),
        Column("dp", processes=1, copies=1, parts=2),
        Column("ddp2", processes=1, copies=1, parts=2, options=_GROUP),
        Column("ddp", options=_GROUP),
        Column("ddp", 4, 4, 4, options=_GROUP),
        Column("ddp_find_unused_parameters_true", options=_GROUP),
        Column("ddp_sharded", options=_GROUP),
        Column("ddp_fully_sharded", options=_GROUP),
        Column("fsdp", options=_GROUP),
        Column("fsdp", 4, 4, 4, options=_GROUP),
        Column("model_parallel", copies=1, options={**_GROUP, "parallelize": whatever_can_be}),
        Column("context_parallel", copies=1, options={**_GROUP, "parallelize": shards_of_batches}),
        Column("pipeline", copies=1, parts=2, options=_GROUP),
        _engine(1),
        _engine(2),
        _engine(3),
    )
}
"""Name → column. Presets that train otherwise by design (half-precision hooks, PowerSGD, local SGD) have
no column: the conformance kit holds them against their algorithms."""
SHORT = ("ddp", "fsdp")
"""The columns that `make test` tries."""
ENGINES = tuple(name for name, column in COLUMNS.items() if column.own_processes)
