"""What the loop calls per step under ddp."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from stratagem import Precision, Prepared, SetupRequest, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratagem_ddp.strategy import DDPStrategy


class DDPPrepared(Prepared):
    """A replica under DistributedDataParallel. Evaluation calls the replica itself."""

    def __init__(self, request: SetupRequest, strategy: DDPStrategy) -> None:
        self._replica = place(request)
        self._ddp = strategy.configure_ddp(self._replica, request.device)
        if strategy.ddp_comm_hook is not None:
            wrap = strategy.ddp_comm_wrapper or _unchanged
            self._ddp.register_comm_hook(strategy.ddp_comm_state, wrap(strategy.ddp_comm_hook))
        super().__init__(request, self._ddp)
        self._average = _averager(strategy)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._replica, *args, **kwargs)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self._ddp.no_sync()

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        applied = super().step(index, closure)
        if self._average is not None and index == len(self.optimizers) - 1:
            self._average(self.plain.parameters())
        return applied

    @property
    def steps_directly(self) -> bool:
        return self._average is None and type(self.precision).step is Precision.step

    def release(self) -> None:
        super().release()
        del self._ddp


class ReplicaPrepared(Prepared):
    """A replica that starts as rank 0's and isn't trained by DistributedDataParallel."""

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        # As DistributedDataParallel does when it is made.
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor.detach(), 0)


class ManualDDPPrepared(ReplicaPrepared):
    """Averages gradients after each backward that the module runs itself.

    DistributedDataParallel expects one backward per forward, and the forward before it; a module
    that steps several optimizers, as a GAN does, has neither. Averaging a gradient again leaves what
    is already equal on all ranks as it is, so gradients may accumulate over backwards.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        self._syncing = True
        self._touched: set[torch.nn.Parameter] = set()
        self._trainable = [p for p in self.module.parameters() if p.requires_grad]
        for parameter in self._trainable:
            parameter.register_post_accumulate_grad_hook(self._touched.add)  # type: ignore[no-untyped-call]

    def manual_step(self, *args: Any) -> Any:
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)
        return self.forward(*args)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        if self._syncing:
            self._average_gradients()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = True

    def _average_gradients(self) -> None:
        # A parameter that another rank used must be reduced here as well, with a zero.
        touched = torch.tensor([p in self._touched for p in self._trainable], dtype=torch.uint8)
        touched = touched.to(self.device)
        dist.all_reduce(touched, dist.ReduceOp.MAX)
        reduced = [p for p, used in zip(self._trainable, touched.tolist()) if used]
        self._touched.clear()
        if not reduced:
            return
        for parameter in reduced:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [p.grad for p in reduced if p.grad is not None]
        for dtype in {grad.dtype for grad in grads}:
            same = [grad for grad in grads if grad.dtype == dtype]
            flat = torch.cat([grad.reshape(-1) for grad in same])
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())
            for grad, part in zip(same, torch.split(flat, [grad.numel() for grad in same])):
                grad.copy_(part.view_as(grad))


def _unchanged(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


def _averager(strategy: DDPStrategy) -> Callable[[Iterable[torch.nn.Parameter]], None] | None:
    if strategy.model_averaging_period is None:
        return None
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    warmup = getattr(strategy.ddp_comm_state, "start_localSGD_iter", 0)
    averager = PeriodicModelAverager(period=strategy.model_averaging_period, warmup_steps=warmup)
    average: Callable[[Iterable[torch.nn.Parameter]], None] = averager.average_parameters
    return average
