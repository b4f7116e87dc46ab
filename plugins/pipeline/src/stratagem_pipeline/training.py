"""Training steps: runs a batch in micro-batches through one of torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.chunks import ChunkLogs, merge, split
from stratagem_trainer import Module

from stratagem import SetupRequest
from stratagem.errors import DataError, StratagemError
from stratagem.sdk.loops import forked_rng, loss_of, weight_of
from stratagem.sdk.tensors import map_tensors
from stratagem_pipeline.building import refuse_small_batch
from stratagem_pipeline.changes import Changes, Hooks, buffers_kept, refuse_batch_norms, why_kept, why_refused
from stratagem_pipeline.forward import remember
from stratagem_pipeline.gradients import backward_before
from stratagem_pipeline.outcome import Outcome
from stratagem_pipeline.route import Route, keeps_no_outputs
from stratagem_pipeline.seeds import Seeds
from stratagem_pipeline.values import Form, form_and_tensors, padded, real_rows

if TYPE_CHECKING:
    from torch import nn

    from stratagem_pipeline.building import Pipeline

IN_STEP, IN_STAGES = 0, 1
"""Purposes of random numbers, as part of their seeds."""

_Entry = tuple[Form, tuple[torch.Tensor, ...]]
"""Form and tensors of the arguments with which the step calls the pipelined module."""


class Training:
    """Runs forward and backward of batches. Collective among the ranks of a copy.

    The user's step runs once per micro-batch on the rank with the first stage, up to its call of the
    pipelined module, and once on the rank with the last, where that call returns the pipeline's output.

    Args:
        pipeline: the stages and their ranks.
        steps: calls a step of the user's module by name.
        call: calls `steps` under the run's precision.
        request: as the `setup` hook received it.
    """

    def __init__(
        self, pipeline: Pipeline, steps: nn.Module, call: Callable[..., Any], request: SetupRequest
    ) -> None:
        self._pipeline, self._steps, self._call = pipeline, steps, call
        self._plain, self._precision = request.original_module, request.precision
        line = pipeline.line
        self.seeds = Seeds(request.collectives, line.device)
        self._outcome = Outcome(line.pipe, line.stage_ranks[-1], line.device)
        self._routes: dict[Any, tuple[Route, Any]] = {}
        layers = [layer for layers in line.layers for layer in layers]
        self._changes = Changes(request.original_module, Hooks(pipeline.interceptor.name, layers))
        self._layers = {id(m) for layers in line.layers for layer in layers for m in layer.modules()}
        self._is_first_batch = True
        # Of the batch that runs:
        self._parts: list[tuple[Any, int]] = []
        self._route: Route | None = None
        self._last_route: Route | None = None
        self._outputs: dict[int, Any] = {}
        self._logs = ChunkLogs()
        self._divisor = self._unit = 1.0

    def run(self, args: tuple[Any, ...], divisor: float, unit: float = 1) -> Any:
        """Run a batch; return on every rank what one step on the whole batch would return.

        Args:
            args: name of the step, batch, index.
            divisor: the loss is divided by it.
            unit: a loss with a weight is multiplied by it instead.

        Raises:
            DataError: the batch, or the step's use of it, doesn't fit a pipeline.
        """
        pipeline, count = self._pipeline, self._pipeline.micro_batches
        self._parts, self._divisor = split(args, count), divisor
        self._unit = unit
        total = sum(size for _, size in self._parts)
        if len(self._parts) < count:
            refuse_small_batch(total, count)
        self._outputs, self._logs = {}, ChunkLogs()
        if count > 1 and not pipeline.statistics_per_part and self._is_first_batch:
            refuse_batch_norms(self._plain, count)
        self._changes.note()
        with self.seeds.batch():
            entries = self._entries() if pipeline.line.has_first else []
            backward_before(entries, self._run_schedule(_shapes(args), entries))
        changed = self._changed_buffers()
        own = (
            (*self._batch_outcome(), self._changes.values(changed, self._layers))
            if pipeline.line.has_last
            else None
        )
        self._parts = []
        output, logged, outer = self._outcome.share(own)
        if not pipeline.line.has_last:
            self._changes.apply(outer)
        if isinstance(self._plain, Module):
            for name, value, how in logged:
                self._plain.log(name, value, **how)
        return output

    def has_stages_for(self, args: tuple[Any, ...]) -> bool:
        """Whether stages were made for batches of this shape. To make them, `run` calls each layer once more."""
        return _shapes(args) in self._routes

    # The user's step --------------------------------------------------------------------------------

    def _entries(self) -> list[_Entry]:
        """Return the arguments with which the step calls the pipelined module, for each micro-batch."""
        entries = []
        # A rank with the last stage runs the step again for the loss; only that run may change buffers.
        kept = buffers_kept(self._plain) if self._pipeline.line.has_last else nullcontext()
        for index, (args, size) in enumerate(self._parts):
            step = partial(self._call, self._steps, *args)
            with kept if index == 0 else nullcontext(), self._muted(size), self._drawing(index):
                called = self._capture_call(step)
            self._changes.refuse_parameters()
            entries.append(form_and_tensors(self._pipeline.line.hand_over(self._pipeline.entry(*called))))
        return entries

    def _capture_call(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        with self._own_layers_alone():
            return self._pipeline.interceptor.capture_call(step, self._changes.refuse_parameters)

    def _loss(self, outputs: tuple[torch.Tensor, ...], number: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's share of the loss. The shares add up to the mean over the batch."""
        index, route = int(number), self._route
        assert route is not None
        args, size = self._parts[index]
        name = self._pipeline.interceptor.name
        # Views, since torch detaches the stage's own outputs before the weights' backward has used them.
        real = [real_rows(each.view_as(each), route.rows[index], route.padded_rows, name) for each in outputs]
        value = self._pipeline.returned(route.forms[-1].value(real))
        of_part = (
            self._logs.of_part(self._plain, size, self._advice())
            if isinstance(self._plain, Module)
            else nullcontext()
        )
        with of_part, self._drawing(index), self._own_layers_alone():
            step = partial(self._call, self._steps, *args)
            output = self._pipeline.interceptor.run_with_output(step, value, self._changes.refuse_parameters)
            output = self._pipeline.line.complete(output)
        self._changes.refuse_parameters()
        loss = loss_of(output)
        self._refuse(loss)
        assert loss is not None
        self._outputs[index] = map_tensors(torch.Tensor.detach, output)
        if weight_of(output) is not None:
            return self._precision.scale(loss * self._unit)
        total = sum(each for _, each in self._parts)
        return self._precision.scale(loss * (size / (total * self._divisor)))

    def _refuse(self, loss: torch.Tensor | None) -> None:
        if loss is None:
            raise DataError(
                "training_step returned None for a part of a batch, and a pipeline runs backward of "
                "every part: return a loss, as one multiplied by 0, to skip it"
            )
        if loss.is_meta:
            raise DataError(self._elsewhere())

    def _elsewhere(self) -> str:
        return (
            f"training_step computes its loss from layers of {self._pipeline.interceptor.name} that are on another "
            "rank: use the output of the pipelined module alone"
        )

    @contextmanager
    def _own_layers_alone(self) -> Iterator[None]:
        """Explain torch's errors about parameters of layers that are on another rank."""
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, StratagemError):
                raise
            if "to not have been used in the graph" in str(error):
                what = f"takes gradients through {self._pipeline.interceptor.name}, which other ranks have layers of"
                raise DataError(f"training_step {what}: choose ddp for gradient penalties") from error
            if "meta" not in str(error):  # where layers of other ranks are
                raise
            raise DataError(self._elsewhere()) from error

    def _advice(self) -> str | None:
        if self._pipeline.micro_batches == 1:
            return None
        return "choose micro_batches=1 (with schedule='gpipe'), or strategy='ddp'"

    # Buffers ------------------------------------------------------------------------------------------

    def _changed_buffers(self) -> dict[str, nn.Module]:
        """Return this rank's buffers that the batch changed. In the first batch, all ranks raise together.

        Raises:
            DataError: buffers changed differently than in one forward, or layers store tensors of their forward.
        """
        pipeline, changed = self._pipeline, self._changes.buffers()
        route = self._last_route
        assert route is not None
        why = why_refused(
            changed,
            self._layers,
            micro_batches=len(self._parts),
            recompute=pipeline.line.recompute,
            padded=any(rows != route.padded_rows for rows in route.rows),
            per_part=pipeline.statistics_per_part,
        )
        if self._is_first_batch and why is None:
            own = {
                id(module)
                for stage in pipeline.line.own
                for layer in pipeline.line.layers[stage]
                for module in layer.modules()
            }
            why = why_kept(self._plain, own)
        whys = pipeline.line.pipe.gather_objects(why) if self._is_first_batch else [why]
        self._is_first_batch = False
        for each in whys:
            if each is not None:
                raise DataError(each)
        return changed

    def _batch_outcome(self) -> tuple[Any, list[Any]]:
        sizes = [size for _, size in self._parts]
        outputs = [self._outputs[index] for index in range(len(sizes))]
        logged = [
            (
                entry.name,
                entry.value.detach() if isinstance(entry.value, torch.Tensor) else entry.value,
                entry.how,
            )
            for entry in self._logs.of_batch()
        ]
        return merge(outputs, sizes), logged

    @contextmanager
    def _muted(self, size: int) -> Iterator[None]:
        """Discard logs of the step: on the first stage, only its beginning runs, and the last stage logs."""
        if not isinstance(self._plain, Module):
            yield
            return
        with ChunkLogs().of_part(self._plain, size, self._advice()):
            yield

    @contextmanager
    def _drawing(self, index: int) -> Iterator[None]:
        """Seed the generators so that the step draws the same numbers on each rank that runs it for a micro-batch."""
        with forked_rng(self._pipeline.line.device):
            self.seeds.plant(IN_STEP, index)
            yield

    # The schedule -----------------------------------------------------------------------------------

    def _run_schedule(self, key: Any, entries: list[_Entry]) -> list[tuple[torch.Tensor, ...]]:
        """Run all micro-batches; on the first stage, return the input leaves with their gradients."""
        line = self._pipeline.line
        filled: list[list[torch.Tensor]] = []
        entry: Form | None = None
        rows: list[int] = []
        if line.has_first:
            entry, rows, filled = self._filled(entries)
        if key not in self._routes:
            route = Route(line, entry, rows)
            remember(self._routes, key, (route, route.schedule(self._loss)))
        self._route, schedule = self._routes[key]
        route = self._route
        if line.has_first and (entry, tuple(rows)) != (route.forms[0], route.rows):
            raise DataError(
                f"training_step calls {self._pipeline.interceptor.name} with {entry}, where it called it with "
                f"{route.forms[0]} for a batch of the same shape: let arguments and their shapes follow from the "
                "batch's shape"
            )
        if line.has_first:
            route.modules[0].gathers = tuple(tensor.requires_grad for tensor in entries[0][1])
        self.seeds.plant(IN_STAGES, line.pipe.rank)
        given = [torch.cat([tensor.detach() for tensor in same]) for same in zip(*filled)]
        target = torch.arange(len(route.rows)) if line.has_last else None
        with _errors_of_layers():
            schedule.step(*given, target=target, **keeps_no_outputs(schedule))
        self._route, self._last_route = None, route
        if not line.has_first:
            return []
        leaves, route.modules[0].leaves = route.modules[0].leaves, []
        return leaves

    def _filled(self, entries: list[_Entry]) -> tuple[Form, list[int], list[list[torch.Tensor]]]:
        """Return the micro-batches' common form, their numbers of rows, and their tensors padded to equal rows."""
        name = self._pipeline.interceptor.name
        rows = [self._pipeline.rows_of(tensors) for _, tensors in entries]
        most = self._pipeline.rows or max(rows)
        if max(rows) > most:
            raise DataError(
                f"a part of a batch has {max(rows)} rows, and {name} was traced with {most}: give "
                "batches of at most the first one's size"
            )
        _, of_largest = entries[rows.index(max(rows))]
        filled = [
            [
                padded(tensor, most) if self._has_rows(tensor, each, like, max(rows)) else tensor
                for tensor, like in zip(tensors, of_largest)
            ]
            for (_, tensors), each in zip(entries, rows)
        ]
        forms = []
        for (form, _), tensors in zip(entries, filled):
            forms.append(
                Form(form.spec, form.others, form.is_tensor, form_and_tensors(tuple(tensors))[0].shapes)
            )
        for form in forms:
            if form != forms[0]:
                raise DataError(
                    f"training_step calls {name} with {form} for one part of a batch and with {forms[0]} for "
                    "another: give all parts of a batch the same arguments, in the same shapes"
                )
        return forms[0], rows, filled

    def _has_rows(self, tensor: torch.Tensor, rows: int, like: torch.Tensor, of_largest: int) -> bool:
        """Whether dim 0 of a tensor is the micro-batch's rows. Only further tensors of an nn.ModuleList may differ.

        Args:
            tensor: of a micro-batch of `rows` rows.
            like: the same tensor of the largest micro-batch, which has `of_largest` rows.
        """
        if self._pipeline.interceptor.every_tensor_has_rows:
            return True
        return rows != of_largest and (tensor.shape[0], like.shape[0]) == (rows, of_largest)


def _shapes(args: tuple[Any, ...]) -> Any:
    """Return a key that distinguishes batches of different shapes, the same on every rank."""
    form, _ = form_and_tensors(args[1:2])
    return form.shapes


@contextmanager
def _errors_of_layers() -> Iterator[None]:
    """Raise a layer's own exception, which torch wraps in an error that describes the stage's tensors."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None or "ailed to run" not in str(error):
            raise
        raise error.__cause__ from None
