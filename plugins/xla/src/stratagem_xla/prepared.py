"""What the loop calls per step on XLA devices: work is collected, and sent off at the right moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem import Prepared, SetupRequest
from stratagem.sdk.tensors import map_tensors
from stratagem_xla.batch_norm import UnbiasedVariances
from stratagem_xla.checkpoints import RNG, CpuReader, on_cpu
from stratagem_xla.client import send_off
from stratagem_xla.loader import Loaded, Padded, takes_mask
from stratagem_xla.placing import moved
from stratagem_xla.sharding import Layout

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem import CheckpointReader


class XlaPrepared(Prepared):
    """A module on an XLA device, or on all of a process.

    Operations are recorded and run when they are marked: after each backward of a micro-batch that isn't
    the last of its step, when gradients are dropped after the last optimizer has stepped, after each batch
    of an evaluation, and at the latest when the next batch is asked for.

    Args:
        request: as the `setup` hook received it.
        layout: how batches lie on the devices.
        module: already placed; `request.module` is moved when None.
        optimizers: made by `request.make_optimizers()` when None.
    """

    # torch_xla moves parameters in the first forward: under inference mode they couldn't be trained afterwards.
    supports_inference_mode = False

    def __init__(
        self,
        request: SetupRequest,
        layout: Layout,
        module: nn.Module | None = None,
        optimizers: Sequence[Optimizer] | None = None,
    ) -> None:
        import torch_xla

        self._sync = torch_xla.sync
        self.layout = layout
        super().__init__(request, placed(request) if module is None else module, optimizers)
        self._masked = takes_mask(request.original_module)
        self._padded: deque[Padded] = deque(maxlen=max(request.loop.accumulate, 1))
        self._pending = False
        self._collectives = request.collectives
        self._variances = UnbiasedVariances(request.original_module)
        self.mark()

    def mark(self) -> None:
        """Send off what has been recorded; doesn't wait for it."""
        self._pending = self._stepped = False
        self._sync()

    def mark_pending(self) -> None:
        """Send off what has been recorded since the last mark, if anything."""
        if self._pending:
            self.mark()

    # Per step -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._pending = True
        if self._masked:
            args = self._with_mask(args)
        return super().forward(*args, **kwargs)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor)
        if not sync:
            self.mark()
        return output

    def manual_step(self, *args: Any) -> Any:
        output = super().manual_step(*args)
        self.mark()
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        padded = self._found(args) if self._masked else None
        output = super().evaluate(*args, **kwargs)
        self._pending = False
        send_off()
        if padded is not None and padded.samples < padded.size:
            # On the CPU: there, other shapes cost no compilation.
            output = map_tensors(lambda tensor: _without_padding(tensor, padded), output)
        return output

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        self._pending = True
        self.reduce_gradients(index)
        applied = super().step(index, None if closure is None else partial(self._evaluated, closure))
        self.stepped(index)
        self._stepped = index + 1 == len(self.optimizers)
        return applied

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        if self._stepped and index + 1 == len(self.optimizers):
            # Not before: gradients that are still there would be results of the program, and be written out.
            self.mark()

    def _evaluated(self, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure in a separate graph. Otherwise each would run again all since the last mark."""
        self.mark()
        loss = closure()
        self.mark()
        return loss

    def reduce_gradients(self, index: int) -> None:
        """Average the gradients of optimizer `index` over processes; nothing within one."""

    def stepped(self, index: int) -> None:
        """Called after optimizer `index` has stepped, before that is sent off."""

    # Data ---------------------------------------------------------------------------------------

    def dataloader(self, loader: Iterable[Any]) -> Iterable[Any]:
        pads = self._padded.append if self._masked else None
        return Loaded(loader, self.device, self.layout, self.mark_pending, pads)

    def _found(self, args: tuple[Any, ...]) -> Padded | None:
        if len(args) < 2 or args[0] not in self._masked:
            return None
        for padded in self._padded:
            if args[1] is padded.original or _first(padded.original) is args[1]:
                return padded
        return None

    def _with_mask(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give a step that takes it the batch at full size, and the mask of what counts in it."""
        padded = self._found(args)
        if padded is None:
            return args
        batch = padded.batch if args[1] is padded.original else _first(padded.batch)
        return (args[0], batch, *args[2:], padded.mask)

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        return on_cpu(super().model_tensors())

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return on_cpu(super().optimizer_tensors())

    def state(self) -> dict[str, Any]:
        import torch_xla.core.xla_model as xm

        # Of every rank: only the first one's state is kept.
        return {**super().state(), RNG: self._collectives.gather_objects(int(xm.get_rng_state()))}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(CpuReader(reader, super().model_tensors()), state, model_only=model_only)
        if not model_only:
            self.load_random_state(state)
        send_off()

    def load_random_state(self, state: dict[str, Any]) -> None:
        """Set XLA's generator to where it was when `state` was made."""
        import torch_xla

        places, rank = state.get(RNG, ()), self._collectives.rank
        if places:
            same = len(places) == self._collectives.world_size
            torch_xla.manual_seed(places[rank] if same else places[0] + rank)

    def release(self) -> None:
        self._padded.clear()
        self._variances.remove()
        send_off()
        super().release()


def placed(request: SetupRequest) -> nn.Module:
    """Convert `request.module` to the run's precision and move it to the device."""
    return moved(request.precision.convert_module(request.module), request.device)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and value else None


def _without_padding(tensor: torch.Tensor, padded: Padded) -> torch.Tensor:
    per_sample = tensor.dim() > 0 and tensor.shape[0] == padded.size
    return tensor.cpu()[: padded.samples] if per_sample else tensor
