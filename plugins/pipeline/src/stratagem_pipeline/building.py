"""From a user's module to a pipeline: layers in stages, tensors where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from stratagem.batches import to_device
from stratagem.errors import DataError
from stratagem.parts import split
from stratagem_pipeline.balance import by_hand, partition, refuse_more_stages
from stratagem_pipeline.find import pipelined_module
from stratagem_pipeline.measure import measured, parameter_bytes
from stratagem_pipeline.placing import Placement
from stratagem_pipeline.route import Line
from stratagem_pipeline.stand_in import StandIn

if TYPE_CHECKING:
    from stratagem import Collectives, SetupRequest
    from stratagem_fsdp.deferred import Construction
    from stratagem_pipeline.strategy import PipelineStrategy


@dataclass(frozen=True)
class Pipeline:
    """A user's module in stages."""

    line: Line
    stand_in: StandIn
    micro_batches: int
    holders: dict[int, tuple[int, ...]]
    """id(parameter or buffer) → the ranks of a copy that hold it."""

    def entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What goes into the first layer when the step calls the pipelined module with these.

        Raises:
            DataError: a Sequential takes one value.
        """
        return only_argument(self.stand_in.name, args, kwargs)


def build(
    request: SetupRequest, strategy: PipelineStrategy, pipe: Collectives, construction: Construction | None
) -> Pipeline:
    """Find the layers, share them out, and place every tensor. Collective.

    Raises:
        ConfigError: the module can't be the pipeline that the settings describe.
        DataError: a batch has fewer samples than there are micro-batches.
    """
    traced = strategy.split_points is not None
    name, net = pipelined_module(request.plain, strategy.pipeline_module, traced=traced)
    stand_in = StandIn(net, name)
    stages = pipe.world_size * strategy.stages_per_rank
    micro_batches = stages if strategy.micro_batches is None else strategy.micro_batches
    strategy.schedule.check_micro_batches(micro_batches, pipe.world_size, stages)
    size = request.micro_batch_size
    if request.training and size is not None and size < micro_batches:
        refuse_small_batch(size, micro_batches)
    layers = list(net.children())
    refuse_more_stages(len(layers), stages)
    placement = Placement(request.plain, pipe, request.collectives, construction, request.device)
    balance = strategy.balance
    if isinstance(balance, str):
        sizes = _automatic(balance, request, placement, stand_in, layers, stages, micro_batches)
    else:
        sizes = by_hand(balance, len(layers), stages)
    of_stage = _in_stages(layers, sizes)
    ranks = strategy.schedule.ranks(pipe.world_size, strategy.stages_per_rank)
    placement.assign(of_stage, ranks)
    placement.fill()
    request.precision.convert_module(request.module)
    line = Line(
        pipe,
        request.device,
        tuple(ranks),
        tuple(of_stage),
        request.precision,
        strategy.activation_checkpointing,
        strategy.schedule,
    )
    return Pipeline(line, stand_in, micro_batches, placement.holders())


def only_argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an nn.Sequential is called with.

    Raises:
        DataError: that isn't one value.
    """
    if len(args) == 1 and not kwargs:
        return args[0]
    raise DataError(
        f"training_step calls {name} with {len(args)} positional and {len(kwargs)} keyword arguments, and an "
        "nn.Sequential takes one: put several tensors into a tuple"
    )


def refuse_small_batch(size: int, micro_batches: int) -> None:
    """Refuse a batch that can't be cut into so many parts.

    Raises:
        DataError: says what to change.
    """
    raise DataError(
        f"a batch has {size} samples on each copy of the model, fewer than micro_batches={micro_batches}: use larger "
        "batches, fewer micro_batches, or drop_last=True where it is the last"
    )


def _in_stages(layers: Sequence[nn.Module], sizes: Sequence[int]) -> list[tuple[nn.Module, ...]]:
    remaining = iter(layers)
    return [tuple(next(remaining) for _ in range(size)) for size in sizes]


def _automatic(
    what: str,
    request: SetupRequest,
    placement: Placement,
    stand_in: StandIn,
    layers: Sequence[nn.Module],
    stages: int,
    micro_batches: int,
) -> list[int]:
    """Measure on rank 0, for all."""
    sample = request.sample if request.training else None
    if stages == 1:
        return [len(layers)]
    if what == "parameters" or not request.training:
        # Without a training there is nothing kept for backward, and no backward to time.
        return partition(parameter_bytes(layers), stages)
    if sample is None:
        raise DataError(
            f"balance={what!r} is measured on a batch, and none can be had of this loader without taking it away from "
            "training: give the layers of each stage, as balance=[2, 3], or balance='parameters'"
        )
    costs: list[float] = []
    if request.collectives.rank == 0:
        entry = _entry(request, stand_in, sample(), micro_batches)
        costs = measured(what, layers, entry, placement.lent, request.precision)
    return partition(request.collectives.broadcast(costs), stages)


def _entry(
    request: SetupRequest, stand_in: StandIn, batch: Any, micro_batches: int
) -> Any:
    """What the step calls the pipelined module with, for a part of a batch."""
    steps = request.module if request.part is None else request.part
    ((part, _), *_) = split(to_device(batch, request.device), micro_batches)
    args, kwargs = stand_in.called_with(lambda: steps("training_step", part, 0))
    return only_argument(stand_in.name, args, kwargs)
