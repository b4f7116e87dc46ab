"""`PipeForward`: replaces a Sequential's forward by FairScale's Pipe over its layers."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from fairscale.nn import Pipe
from torch import nn

from stratagem import ConfigError
from stratagem.errors import DataError
from stratagem.sdk.torch_private import tensor_version
from stratagem_fairscale.fairscale_private import BATCH_NORM, end_workers

ONCE_PER_CHUNK = "FairScale runs once for each chunk of a batch: set chunks=1, or choose another strategy"


class PipeForward:
    """Runs the layers of a Sequential on several devices, in chunks of a batch.

    The Sequential keeps its layers, names and hooks. This object is its `forward` until `release`.

    Args:
        sequential: its layers are moved to the devices.
        balance: layers of each device.
        devices: as many as `balance` has entries.
        chunks: number of chunks of a batch.
        checkpoint: as FairScale has it.

    Raises:
        ConfigError: FairScale refuses the Sequential.
    """

    def __init__(
        self,
        sequential: nn.Sequential,
        balance: Sequence[int],
        devices: Sequence[torch.device],
        chunks: int,
        checkpoint: str,
    ) -> None:
        self._sequential = sequential
        self._batch_norms = {n: m for n, m in sequential.named_modules() if isinstance(m, BATCH_NORM)}
        with warnings.catch_warnings():
            # It points to a predecessor of torch.distributed.pipelining, which torch has removed.
            warnings.filterwarnings("ignore", r"fairscale\.nn\.Pipe has been upstreamed", DeprecationWarning)
            try:
                self._pipe = Pipe(sequential, balance, devices=devices, chunks=chunks, checkpoint=checkpoint)
            except (TypeError, ValueError) as error:  # as for a parameter shared by layers on two devices
                raise ConfigError(
                    f"FairScale doesn't distribute {type(sequential).__name__}: {error}"
                ) from error
        # FairScale ends its threads in __del__, which waits for ever during interpreter shutdown
        # (facebookresearch/fairscale#983).
        self._end = weakref.finalize(self, end_workers, self._pipe.pipeline, os.getpid())
        self._state = _ThreadState(devices)
        for partition in self._pipe.partitions:
            # patch: replaced forwards
            partition.forward = partial(self._run_layers, partial(nn.Sequential.forward, partition))
        # patch: replaced forwards
        sequential.forward = self  # type: ignore[method-assign]  # on the instance, on purpose

    def __call__(self, input: Any) -> Any:
        """Run the layers on a tensor, or a tuple of tensors, whose dim 0 is the batch."""
        rows = _rows(input)
        parts = min(self._pipe.chunks, rows)
        if parts > 1:
            self._refuse_batch_norms()
        before = [(each, tensor_version(each)) for each in self._sequential.buffers()] if parts > 1 else []
        self._state = _ThreadState(self._pipe.devices)
        output = self._pipe(_moved(input, self._pipe.devices[0]))
        if parts > 1:
            self._refuse_other_rows(output, rows)
        if any(tensor_version(buffer) != version for buffer, version in before):
            raise DataError(f"a layer changes a buffer in its forward, which {ONCE_PER_CHUNK}")
        home = (input[0] if isinstance(input, tuple) else input).device
        return _moved(output, home)

    def __reduce__(self) -> Any:
        """Pickle and copy as the Sequential's ordinary forward."""
        return partial, (nn.Sequential.forward, self._sequential)

    def release(self) -> None:
        """Give the Sequential its own forward back, and end FairScale's threads."""
        del self._sequential.forward
        self._end()

    def _run_layers(self, forward: Callable[[Any], Any], input: Any) -> Any:
        """Run the layers of one device, in a thread of FairScale's."""
        with self._state.entered():
            output = forward(input)
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.is_complex():
                # FairScale detaches tensors that aren't floating-point: earlier layers would get no gradient.
                raise DataError(
                    "a layer returns complex numbers, and FairScale passes on gradients of real ones alone: give "
                    "the layers that compute with them one device, by balance"
                )
        return output

    def _refuse_batch_norms(self) -> None:
        for name, layer in self._batch_norms.items():
            if layer.training:
                raise DataError(
                    f"{name!r} is a {type(layer).__name__}, which {ONCE_PER_CHUNK}, and takes the statistics of each "
                    "chunk for those of the batch"
                )

    def _refuse_other_rows(self, output: Any, rows: int) -> None:
        for tensor in output if isinstance(output, tuple) else (output,):
            if len(tensor) != rows:
                raise DataError(
                    f"{type(self._sequential).__name__} makes {len(tensor)} rows of the {rows} in a batch, so that "
                    "its layers look at other rows, of which each chunk has some: set chunks=1"
                )


class _ThreadState:
    """Torch's thread-local state, which FairScale's threads must copy from the calling thread.

    Args:
        devices: of the layers.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        kinds = {device.type for device in devices}
        self._autocasts = {
            kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)
        }
        self._caches = torch.is_autocast_cache_enabled()
        self._inference = torch.is_inference_mode_enabled()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the recorded state in this thread."""
        with ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for kind, dtype in self._autocasts.items():
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=self._caches))
            yield


def _rows(input: Any) -> int:
    """Return the rows of a batch.

    Raises:
        DataError: FairScale can't cut it into chunks, or would drop rows.
    """
    tensors = input if isinstance(input, tuple) else (input,)
    if not tensors or not all(isinstance(each, torch.Tensor) and each.dim() for each in tensors):
        kinds = ", ".join(type(each).__name__ for each in tensors)
        raise DataError(
            f"the nn.Sequential is called with ({kinds}), and FairScale cuts tensors along dim 0, the batch: "
            "call it with one, or with a tuple of them"
        )
    rows = {len(each) for each in tensors}
    if len(rows) > 1:
        raise DataError(
            f"the nn.Sequential is called with tensors of {', '.join(map(str, sorted(rows)))} rows, and FairScale "
            "cuts each into chunks along dim 0: give each a row for each sample"
        )
    return rows.pop()


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(each.to(device) for each in value)
    return value.to(device)
