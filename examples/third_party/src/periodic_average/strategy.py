"""Processes train independently, and average their parameters every few steps."""

from datetime import timedelta

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from stratagem import ConfigError, ParallelStrategy, Prepared, ProcessGroupCollectives, hookimpl


class PeriodicAverage(ParallelStrategy):
    """Local SGD: a collective every `period` optimizer steps, and none in between.

    Args:
        period: optimizer steps from one average to the next.
        timeout_s: seconds after which a process that doesn't come fails the run.
        further: as for `ParallelStrategy`.
    """

    def __init__(self, period: int = 8, timeout_s: float = 600.0, **further):
        super().__init__(**further)
        if period < 1:
            raise ConfigError(f"period={period} must be at least 1 optimizer step")
        self.period = period
        self.timeout = timedelta(seconds=timeout_s)

    def open_collectives(self, request):
        return ProcessGroupCollectives(
            request.environment, request.device, request.accelerator.backend, self.timeout
        )

    @hookimpl
    def setup(self, request):
        return PeriodicAveragePrepared(request, self.period)


class PeriodicAveragePrepared(Prepared):
    """What the loop calls per step."""

    def replicas(self):
        """Yield nothing: between two averages ranks have different parameters."""
        return iter(())

    def __init__(self, request, period):
        super().__init__(request)
        self.period = period
        self.steps = 0
        self.collectives = request.collectives
        with torch.no_grad():
            for tensor in (*self.original_module.parameters(), *self.original_module.buffers()):
                tensor.copy_(self.collectives.broadcast(tensor))

    def step(self, index, closure=None):
        applied = super().step(index, closure)
        if index == len(self.optimizers) - 1:
            self.steps += 1
            if self.steps % self.period == 0:
                self.average()
        return applied

    @torch.no_grad()
    def average(self):
        vector = parameters_to_vector(self.original_module.parameters())
        vector_to_parameters(self.collectives.all_reduce(vector, "mean"), self.original_module.parameters())

    def state(self):
        return {**super().state(), "steps": self.steps}

    def load(self, reader, state, *, model_only=False):
        super().load(reader, state, model_only=model_only)
        self.steps = 0 if model_only else state.get("steps", 0)
