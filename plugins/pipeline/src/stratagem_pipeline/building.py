"""Builds a pipeline from a user's module: divides the layers into stages and places their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.chunks import ChunkLogs, split
from stratagem_trainer import Module
from torch import nn

from stratagem import ConfigError
from stratagem.errors import DataError
from stratagem.sdk.tensors import to_device
from stratagem_pipeline.balance import by_hand, partition, refuse_more_stages
from stratagem_pipeline.chain import Chain
from stratagem_pipeline.changes import buffers_kept
from stratagem_pipeline.find import pipelined_module
from stratagem_pipeline.forward_interceptor import ForwardInterceptor
from stratagem_pipeline.measure import measured, parameter_bytes
from stratagem_pipeline.placing import Placement
from stratagem_pipeline.route import Line, unchanged
from stratagem_pipeline.trace import Traced, traced
from stratagem_pipeline.values import form_and_tensors, rows_of

if TYPE_CHECKING:
    from stratagem_sharding.deferred_init import Construction

    from stratagem import Collectives, SetupRequest
    from stratagem_pipeline.settings import Settings


@dataclass(frozen=True)
class Pipeline:
    """A user's module in stages."""

    line: Line
    interceptor: ForwardInterceptor
    micro_batches: int
    holders: dict[int, tuple[int, ...]]
    """id(parameter or buffer) → the ranks of a copy that hold it."""
    statistics_per_part: bool
    """Whether batch norms may use the statistics of a micro-batch instead of the batch's."""
    traced: Traced | None = None
    """The traced module, if the pipelined module was traced."""

    @property
    def rows(self) -> int | None:
        """Rows of every micro-batch, if the module was traced for one number; else None."""
        return None if self.traced is None else self.traced.rows

    def entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the input of the first layer for a call of the pipelined module with these arguments.

        Raises:
            UsageError: the module can't be called with them.
        """
        if self.traced is not None:
            return self.traced.value(self.interceptor.name, args, kwargs)
        return only_argument(self.interceptor.name, args, kwargs)

    def rows_of(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the number of rows in the input of the first layer.

        Raises:
            DataError: tensors that must have a row per sample differ in their rows.
        """
        having_rows = tensors if self.interceptor.every_tensor_has_rows else tensors[:1]
        return rows_of(having_rows, self.interceptor.name)

    def returned(self, value: Any) -> Any:
        """Return the pipelined module's output, given the last layer's."""
        return value if self.traced is None else self.traced.returned(value)


@dataclass(frozen=True)
class Stages:
    """The layers of a pipeline in stages, each on its rank, before `pipeline` makes a `Pipeline` of them."""

    settings: Settings
    interceptor: ForwardInterceptor
    placement: Placement
    layers: tuple[tuple[nn.Module, ...], ...]
    """Stage → its layers."""
    ranks: tuple[int, ...]
    """Stage → rank among those of a copy."""
    micro_batches: int
    trace: Traced | None

    def pipeline(
        self,
        request: SetupRequest,
        pipe: Collectives,
        hand_over: Callable[[Any], Any] = unchanged,
        complete: Callable[[Any], Any] = unchanged,
    ) -> Pipeline:
        """Return the pipeline of these stages. Parameters mustn't be replaced after this call.

        Args:
            request: as the `setup` hook received it.
            pipe: the ranks of this copy.
            hand_over: as `Line.hand_over`.
            complete: as `Line.complete`.
        """
        inside = {
            id(parameter)
            for of_stage in self.layers
            for layer in of_stage
            for parameter in layer.parameters()
        }
        line = Line(
            pipe,
            request.device,
            self.ranks,
            self.layers,
            request.precision,
            self.settings.activation_checkpointing,
            self.settings.schedule,
            self.interceptor.call_layer,
            tuple(each for each in request.original_module.parameters() if id(each) not in inside),
            hand_over,
            complete,
        )
        return Pipeline(
            line,
            self.interceptor,
            self.micro_batches,
            self.placement.holders(),
            self.settings.batch_statistics_per_part,
            self.trace,
        )


def divide(
    request: SetupRequest, settings: Settings, pipe: Collectives, construction: Construction | None
) -> Stages:
    """Find the layers, distribute them over stages, and place every tensor. Collective.

    Raises:
        ConfigError: the module can't be the pipeline that the settings describe.
        DataError: a batch has fewer samples than there are micro-batches.
    """
    is_traced = settings.split_points is not None
    name, net = pipelined_module(request.original_module, settings.pipeline_module, traced=is_traced)
    interceptor = ForwardInterceptor(net, name)
    if isinstance(net, nn.ModuleList) and not is_traced:
        interceptor = Chain(net, name)
    stages = pipe.world_size * settings.stages_per_rank
    micro_batches = stages if settings.micro_batches is None else settings.micro_batches
    settings.schedule.check_micro_batches(micro_batches, pipe.world_size, stages)
    size = request.loop.micro_batch_size
    if request.loop.training and size is not None and size < micro_batches:
        refuse_small_batch(size, micro_batches)
    trace = (
        None
        if settings.split_points is None
        else _trace(request, settings.split_points, interceptor, micro_batches)
    )
    layers: list[nn.Module] = list(net.children()) if trace is None else list(trace.stages)
    refuse_more_stages(len(layers), stages)
    placement = Placement(request.original_module, pipe, request.collectives, construction, request.device)
    balance = settings.balance
    if isinstance(balance, str):
        entry = partial(_entry, request, interceptor, micro_batches, trace)
        sizes = _automatic(balance, request, placement, entry, layers, interceptor.call_layer, stages)
    else:
        sizes = by_hand(balance, len(layers), stages)
    of_stage = _in_stages(layers, sizes)
    ranks = settings.schedule.ranks(pipe.world_size, settings.stages_per_rank)
    placement.assign(of_stage, ranks)
    placement.fill()
    request.precision.convert_module(request.module)
    for stage in () if trace is None else trace.stages:
        stage.link()
    return Stages(settings, interceptor, placement, tuple(of_stage), tuple(ranks), micro_batches, trace)


def only_argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the only argument of a call of an nn.Sequential.

    Raises:
        DataError: there isn't exactly one positional argument.
    """
    if len(args) == 1 and not kwargs:
        return args[0]
    raise DataError(
        f"training_step calls {name} with {len(args)} positional and {len(kwargs)} keyword arguments, and an "
        "nn.Sequential takes one: put several tensors into a tuple"
    )


def refuse_small_batch(size: int, micro_batches: int) -> None:
    """Refuse a batch with fewer samples than micro-batches.

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
    entry: Callable[[], Any],
    layers: Sequence[nn.Module],
    call_layer: Callable[[nn.Module, Any], Any],
    stages: int,
) -> list[int]:
    """Return the layers of each stage by cost; rank 0 measures costs for all ranks."""
    if stages == 1:
        return [len(layers)]
    if what == "parameters" or not request.loop.training:
        # Without training, there are no saved activations to count and no backward to time.
        return partition(parameter_bytes(layers), stages)
    if request.steps is None or request.steps.make_sample is None:
        raise DataError(
            f"balance={what!r} is measured on a batch, and this loader gives none without taking it away from "
            "training: give the layers of each stage, as balance=[2, 3], or balance='parameters'"
        )
    costs: list[float] = []
    if request.collectives.rank == 0:
        given = entry()
        if any(tensor.is_meta for tensor in form_and_tensors(given)[1]):
            raise ConfigError(
                f"balance={what!r} is measured, and what the step computes before the pipelined "
                "module is on the meta device: "
                "construct those layers in __init__, or give the layers of each stage, as balance=[2, 3]"
            )
        costs = measured(
            what,
            layers,
            to_device(given, request.device),
            placement.materialized,
            request.precision,
            call_layer,
        )
    return partition(request.collectives.broadcast(costs), stages)


def _trace(
    request: SetupRequest, split_points: Sequence[str], interceptor: ForwardInterceptor, micro_batches: int
) -> Traced:
    """Trace the pipelined module with a micro-batch, on every rank."""
    if request.steps is None or request.steps.make_sample is None:
        raise DataError(
            f"split_points has {interceptor.name} traced with a batch, and this loader gives none without taking it "
            "away from the run: use a DataLoader over a map-style dataset, or write the module as an nn.Sequential"
        )
    if any(tensor.is_meta for tensor in interceptor.net.parameters()):
        raise ConfigError(
            f"{interceptor.name} is to be traced and isn't whole on this rank: construct it again, on every rank"
        )
    # A graph records the devices on which the module's code creates tensors.
    request.original_module.to(request.device)
    args, kwargs = _capture_call(request, interceptor, micro_batches, request.device)
    return traced(interceptor.net, interceptor.name, args, kwargs, split_points)


def _entry(
    request: SetupRequest, interceptor: ForwardInterceptor, micro_batches: int, trace: Traced | None
) -> Any:
    """Return the input of the first layer for one micro-batch."""
    device = torch.device("cpu") if trace is None else request.device
    args, kwargs = _capture_call(request, interceptor, micro_batches, device)
    if trace is not None:
        return trace.value(interceptor.name, args, kwargs)
    return only_argument(interceptor.name, args, kwargs)


def _capture_call(
    request: SetupRequest, interceptor: ForwardInterceptor, micro_batches: int, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which the step calls the pipelined module, for one micro-batch on `device`."""
    steps = request.steps
    assert steps is not None
    assert steps.make_sample is not None
    ((chunk, _), *_) = split(to_device(steps.make_sample(), device), micro_batches)
    muted = (
        ChunkLogs().of_part(request.original_module, 1)
        if isinstance(request.original_module, Module)
        else nullcontext()
    )
    with muted, buffers_kept(request.original_module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        return interceptor.capture_call(lambda: steps.chunk_module(steps.sample_step, chunk, 0))
