"""Private names of FairScale 0.4.13 that this plugin uses, each with its reason.

FairScale is archived, and its version pinned; plugins/fairscale/tests/test_fairscale_private.py fails if one is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairscale.nn import ShardedDataParallel
from fairscale.nn.pipe.worker import join_workers
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BATCH_NORM: Any = _BatchNorm
"""torch's common base class of BatchNorm1d, 2d, 3d and SyncBatchNorm. There is no public one."""


@contextmanager
def as_trained(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """While active, all these parameters require gradients."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def forget_owners(oss: Any, shares: list[list[dict[str, Any]]]) -> None:
    """Set which rank owns which parameters, and make OSS derive its caches again."""
    kept = list(shares)
    oss._clear_cache()
    oss._partition_parameters.extend(kept)


def owner_of(oss: Any, parameter: torch.Tensor) -> int:
    """Return the rank that steps a parameter."""
    rank: int = oss._param_to_rank[parameter]
    return rank


@dataclass(frozen=True)
class ParameterBuffer:
    """The flat buffer in which OSS sends one rank's parameters. The parameters are views of it."""

    flat: torch.Tensor
    parameters: list[torch.Tensor]

    def holds_all(self) -> bool:
        """Whether each parameter is still a view of the buffer."""
        begin = self.flat.data_ptr()
        end = begin + self.flat.nbytes
        return not [p for p in self.parameters if not begin <= p.data_ptr() < end and p.numel()]

    def leave(self) -> None:
        """Give each parameter its own memory."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()


def parameter_buffers(oss: Any) -> Iterator[ParameterBuffer]:
    """Yield OSS's buffers."""
    for by_rank in oss.buckets.values():
        for bucket in by_rank.values():
            yield ParameterBuffer(bucket.buffer, bucket._params)


class HookedShardedDDP(ShardedDataParallel):  # type: ignore[misc]  # FairScale has no types
    """ShardedDDP whose caller decides when each gradient is sent.

    FairScale's own hooks send each gradient as soon as backward computes it, and a bucket once it is complete.

    Args:
        module: on its device, equal on all ranks.
        optimizers: OSS objects with the parameters whose gradients are averaged.
        note: called in backward with a parameter and the hook's arguments, once its gradient has been accumulated.
        reduce_buffer_size: elements of small gradients that are sent together; 0 sends each separately.
        reduce_fp16: send them as float16.

    Attributes:
        senders: id of each parameter that has ever been trained → the function that sends its gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: list[Any],
        note: Callable[..., None],
        reduce_buffer_size: int,
        reduce_fp16: bool,
    ) -> None:
        self._note = note
        # Keyed by ids: hashing a tensor is a slow Python call, and the parameters live as long as this object.
        self._trained: dict[int, torch.Tensor] = {}
        self.senders: dict[int, Callable[[], None]] = {}
        self._slots: dict[int, tuple[Any, torch.Tensor]] = {}
        self._collected: list[tuple[torch.Tensor, torch.Tensor]] = []
        super().__init__(
            module,
            optimizers,
            broadcast_buffers=False,
            sync_models_at_startup=False,
            reduce_buffer_size=reduce_buffer_size,
            reduce_fp16=reduce_fp16,
        )

    @property
    def candidates(self) -> list[torch.Tensor]:
        """Parameters of all optimizers, trained or not."""
        found: list[torch.Tensor] = self._all_params
        return found

    def is_in_bucket(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter's gradient is sent together with others."""
        return id(parameter) in self._slots

    def include_added_groups(self) -> None:
        """Read the optimizers' parameters again, after a group was added."""
        shares = [share for oss in self._sharded_optimizers for share in oss._per_device_params.values()]
        self._all_params = [parameter for share in shares for own in share for parameter in own]
        self.refresh_trainable()

    def refresh_trainable(self) -> None:
        """Set up all parameters ever trained: a frozen one may still have an earlier gradient."""
        self._trained.update((id(each), each) for each in self._all_params if each.requires_grad)
        self._grad_to_be_reduced: list[bool] = []  # empty, or FairScale warns of waiting gradients
        with torch.enable_grad(), as_trained(self._trained.values()):
            super().refresh_trainable()

    def begin(self) -> None:
        """Begin a reduction: reset the counters of sent gradients."""
        self._grad_to_be_reduced = [True] * len(self._trainable_params)
        self._bucket_flush_callback_set = True  # `finish` flushes, not FairScale's callback
        self._collected.clear()
        for bucket in self._bucket_list:
            bucket.reset_checked_in()

    def send(self, parameter: torch.Tensor) -> None:
        """Send a parameter's gradient to its owner, or its bucket once complete. A missing gradient is zeros."""
        slot = self._slots.get(id(parameter))
        if slot is not None:
            bucket, view = slot
            self._collected.append((parameter, view))
            if bucket.params_checked_in < len(bucket._params) - 1:
                bucket.params_checked_in += 1
                return
            self._fill()
        elif parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        elif not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        self.senders[id(parameter)]()

    def finish(self) -> None:
        """Send the remaining buckets, and wait for all gradients."""
        self._fill()
        self._flush_reduce_calls()

    def _fill(self) -> None:
        """Copy gradients into their buckets. A zero_grad may have replaced them by other tensors."""
        for parameter, view in self._collected:
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                view.copy_(gradient)
            parameter.grad = view
        self._collected.clear()

    def _get_reduce_fn(self, index: int, param: torch.Tensor, dst_rank: int) -> Callable[..., None]:
        self.senders[id(param)] = super()._get_reduce_fn(index, param, dst_rank)
        return partial(self._note, param)

    def _setup_bucket_strategy(self) -> None:
        before = [(parameter, parameter.grad) for parameter in self._trainable_params]
        super()._setup_bucket_strategy()
        self._slots = {id(p): (bucket, p.grad) for bucket in self._bucket_list for p in bucket._params}
        for parameter, gradient in before:
            if gradient is None:  # not zeros: its owner would step the parameter with them
                parameter.grad = None

    def _detect_train_change(self) -> bool:
        return any(p.requires_grad and id(p) not in self._trained for p in self._all_params)

    def _clear_counters(self) -> None:
        """Do nothing: a forward doesn't begin a reduction here, since another may be under way."""

    @property
    def hooks(self) -> list[Any]:
        """Handles of hooks on parameters."""
        handles: list[Any] = self._grad_hooks
        return handles


def end_workers(pipeline: Any, process: int) -> None:
    """End the threads of a Pipe. Its own `__del__` hangs if the interpreter has already stopped them.

    Args:
        pipeline: `Pipe.pipeline`.
        process: id of the process that started the threads; a fork has none.
    """
    if os.getpid() == process:
        join_workers(pipeline.in_queues, pipeline.out_queues)
    pipeline.in_queues, pipeline.out_queues = [], []
