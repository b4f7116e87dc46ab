"""Evaluation: runs the pipelined module's forward through all stages, and returns its output on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stratagem.errors import DataError
from stratagem_pipeline.changes import Hooks
from stratagem_pipeline.route import Route
from stratagem_pipeline.values import Form, form_and_tensors, padded, real_rows

if TYPE_CHECKING:
    from stratagem_pipeline.building import Pipeline

KEPT = 4
"""Number of routes that are kept, for the newest shapes. Each has its own receive buffers."""


class PipelinedForward:
    """Runs calls of the pipelined module through the pipeline, without backward.

    Args:
        pipeline: the pipeline; every call is collective among its ranks.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._routes: dict[Any, Route] = {}
        layers = [layer for layers in pipeline.line.layers for layer in layers]
        self._hooks = Hooks(pipeline.interceptor.name, layers)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While active, a call of the pipelined module runs the pipeline, and returns its output on every rank."""
        self._hooks.note()
        with torch.no_grad(), self._pipeline.interceptor.patched(self._forward):
            yield

    def release(self) -> None:
        """Drop all routes."""
        self._routes.clear()

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        pipeline = self._pipeline
        line = pipeline.line
        self._hooks.refuse_new()
        form, tensors = form_and_tensors(line.hand_over(pipeline.entry(args, kwargs)))
        rows = pipeline.rows_of(tensors)
        if pipeline.interceptor.every_tensor_has_rows:
            each = pipeline.rows or -(-rows // min(pipeline.micro_batches, rows))
            parts = list(zip(*(torch.split(tensor, each) for tensor in tensors)))
            filled = [tuple(padded(tensor, each) for tensor in part) for part in parts]
        else:
            # Don't split the batch: it is unknown which further tensors have a row per sample.
            each, filled = rows, [tensors]
        sizes = [min(each, rows - start) for start in range(0, rows, each)]
        entry = Form(form.spec, form.others, form.is_tensor, form_and_tensors(filled[0])[0].shapes)
        key = (form.shapes, form.spec)
        route = self._routes.get(key)
        if route is None:
            route = Route(line, entry, sizes)
            remember(self._routes, key, route)
        outputs = route.forward(filled)
        return self._shared(route, outputs)

    def _shared(self, route: Route, outputs: list[tuple[torch.Tensor, ...]]) -> Any:
        """Concatenate the outputs of all micro-batches, and send them to every rank."""
        line, name = self._pipeline.line, self._pipeline.interceptor.name
        form, last = route.forms[-1], line.stage_ranks[-1]
        merged = []
        for index, (shape, dtype) in enumerate(form.shapes):
            parts = (
                [
                    real_rows(results[index], rows, route.padded_rows, name)
                    for results, rows in zip(outputs, route.rows)
                ]
                if line.has_last
                else [
                    real_rows(torch.empty(shape, dtype=dtype, device="meta"), rows, route.padded_rows, name)
                    for rows in route.rows
                ]
            )
            if len(parts) > 1 and (not shape or shape[0] % route.padded_rows):
                raise DataError(
                    f"{name} makes an output of shape {shape} of {route.padded_rows} rows, and those of several "
                    "micro-batches can't be put together: give it an output with a row per sample"
                )
            whole = torch.cat(parts) if len(parts) > 1 else parts[0]
            if not line.has_last:
                whole = torch.empty(whole.shape, dtype=dtype, device=line.device)
            merged.append(line.pipe.broadcast(whole, last) if line.pipe.world_size > 1 else whole)
        return self._pipeline.returned(form.value(merged))


def remember(routes: dict[Any, Any], key: Any, route: Any) -> None:
    """Keep a route, and drop the oldest if there are too many; the same on all ranks of a copy."""
    while len(routes) >= KEPT:
        del routes[next(iter(routes))]
    routes[key] = route
