"""Synchronous data parallelism: gradients are averaged in buckets after the last backward of a step."""

from contextlib import contextmanager

from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any

from stratagem import Prepared, ProcessGroupStrategy, hookimpl
from stratagem.errors import ConfigError
from stratagem.sdk.loops import loss_of


class Frozen(ProcessGroupStrategy):
    """A process per device, in one process group.

    Args:
        factor: gradients are multiplied by it; nothing but a setting to be typed and refused.
        further: as for `ProcessGroupStrategy`.
    """

    def __init__(self, factor: float = 1.0, **further):
        super().__init__(**further)
        if factor <= 0:
            raise ConfigError(f"factor={factor} must be above 0")
        self.factor = factor

    @hookimpl
    def setup(self, request):
        return FrozenPrepared(request, self.factor)


class FrozenPrepared(Prepared):
    def __init__(self, request, factor):
        super().__init__(request)
        self.collectives, self.factor, self.syncing = request.collectives, factor, True
        broadcast_coalesced([*self.original_module.parameters(), *self.original_module.buffers()])

    def forward_backward(self, *args, divisor=1, sync=True):
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if sync and self.syncing and loss_of(output) is None:
            self.average()
        return output

    def backward(self, loss, **kwargs):
        super().backward(loss, **kwargs)
        if self.syncing:
            self.average()

    @contextmanager
    def no_sync(self):
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def average(self):
        parameters = list(self.original_module.parameters())
        gradients = gradients_of_any(parameters, [p.grad is not None for p in parameters], self.device)
        for flat in flattened_buckets(gradients):
            flat.copy_(self.collectives.all_reduce(flat, "mean") * self.factor)
