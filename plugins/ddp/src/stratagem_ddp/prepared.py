"""What the loop calls per step under ddp."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState

from stratagem import Precision, Prepared, SetupRequest, place
from stratagem.collectives.flat import gradients_of_any, in_few_pieces, send_from_first
from stratagem_ddp.local_sgd import average
from stratagem_ddp.own_part import OwnPart
from stratagem_ddp.power_sgd import PowerSGDMemory
from stratagem_ddp.registration import hook_state, local_sgd, refuse_unfit, register

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from stratagem import CheckpointReader
    from stratagem_ddp.strategy import DDPStrategy

OWN = "ddp/rank"
"""With a rank and a slash, the beginning of the names of what a rank has for itself in a checkpoint."""
FACTORS = "ddp/factor/"
"""The beginning of the names of what PowerSGD found, the same on all ranks."""


class DDPPrepared(Prepared):
    """A replica under DistributedDataParallel. Evaluation calls the replica itself.

    Under local SGD ranks come to have parameters and optimizer states of their own. A checkpoint has
    their averages, which is what evaluations see and what any other strategy or number of ranks goes
    on with; and each rank's own beside them, so that as many ranks go on exactly.
    """

    def __init__(self, request: SetupRequest, strategy: DDPStrategy) -> None:
        self._replica = place(request)
        self._ddp = strategy.configure_ddp(self._replica, request.device)
        self._collectives = request.collectives
        self._hook_state = hook_state(strategy, request.plain, request.collectives)
        register(strategy, self._ddp, self._hook_state)
        super().__init__(request, self._ddp)
        refuse_unfit(request, self.optimizers, self._hook_state)
        self._local = local_sgd(strategy, self._replica, self._hook_state, request.collectives)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._replica, *args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._agree_on_buffers()
        with nullcontext() if self._local is None else self._local.averaged():
            yield

    def no_sync(self) -> AbstractContextManager[Any]:
        return self._ddp.no_sync()

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        applied = super().step(index, closure)
        if self._local is not None and index == len(self.optimizers) - 1:
            self._local.after_step()
        return applied

    @property
    def steps_directly(self) -> bool:
        return self._local is None and type(self.precision).step is Precision.step

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._agree_on_buffers()
        if not self._drifted:
            return super().model_tensors()
        trained = {
            f"model/{n}" for n, p in self.plain.named_parameters(remove_duplicate=False) if p.requires_grad
        }
        return self._averaged(super().model_tensors(), trained)

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        tensors, own = super().optimizer_tensors(), f"{OWN}{self._collectives.rank}/"
        if isinstance(self._hook_state, PowerSGDMemory):
            errors, factors = self._hook_state.remembered()
            remembered = {f"{own}error/{name}": value for name, value in errors.items()}
            remembered.update({f"{FACTORS}{name}": value for name, value in factors.items()})
        else:
            remembered = {}
        if not self._drifted:
            return {**tensors, **remembered}
        drifted = {f"{own}{key}": value for key, value in {**super().model_tensors(), **tensors}.items()}
        return {**self._averaged(tensors, tensors.keys()), **drifted, **remembered}

    def state(self) -> dict[str, Any]:
        hidden: dict[str, Any] = {}
        if self._local is not None:
            hidden["local_sgd"] = {"steps": self._local.steps, "drifted": self._drifted}
        if isinstance(self._hook_state, PowerSGDMemory):
            hidden["power_sgd"] = self._hook_state.counters()
        return {**super().state(), **({"ddp": hidden} if hidden else {})}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        hidden = {} if model_only else state.get("ddp", {})
        local = hidden.get("local_sgd", {})
        if self._local is not None:
            self._local.steps = 0  # what is filled below are the parameters, not copies of their averages
        same = reader.world_size == self._collectives.world_size
        if self._local is not None and local.get("drifted") and same:
            super().load(OwnPart(reader, f"{OWN}{self._collectives.rank}/"), state)
        else:
            super().load(reader, state, model_only=model_only)
        if self._local is not None:
            self._local.steps = local.get("steps", 0)
            if isinstance(self._hook_state, PostLocalSGDState):
                self._hook_state.iter = min(self._local.steps, self._hook_state.start_localSGD_iter)
        if isinstance(self._hook_state, PowerSGDMemory) and "power_sgd" in hidden:
            errors = [self._read(reader, f"{OWN}{rank}/error/") for rank in self._ranks(reader)]
            # What another number of ranks lost is shared out: its mean is what gradients lack.
            mean = {name: torch.stack([each[name] for each in errors]).mean(0) for name in errors[0]}
            self._hook_state.restore(mean, self._read(reader, FACTORS), hidden["power_sgd"])

    def release(self) -> None:
        super().release()
        del self._ddp, self._local, self._hook_state

    # --------------------------------------------------------------------------------------------

    @property
    def _drifted(self) -> bool:
        return self._local is not None and self._local.drifted

    def _averaged(self, tensors: dict[str, torch.Tensor], names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return `tensors` with copies of those in `names` averaged, where all ranks have them. Collective."""
        ours = [name for name in tensors if name in names and tensors[name].is_floating_point()]
        everywhere = set(ours).intersection(*self._collectives.gather_objects(ours))
        copies = {
            name: tensors[name].detach().to(self.device, copy=True) for name in ours if name in everywhere
        }
        average(list(copies.values()))
        return {**tensors, **copies}

    def _agree_on_buffers(self) -> None:
        """Give all ranks the buffers of rank 0, as the next forward in training would. Collective."""
        if self._ddp.broadcast_buffers:
            send_from_first(self._replica.buffers())

    def _ranks(self, reader: CheckpointReader) -> Iterable[int]:
        same = reader.world_size == self._collectives.world_size
        return (self._collectives.rank,) if same else range(reader.world_size)

    def _read(self, reader: CheckpointReader, prefix: str) -> dict[str, torch.Tensor]:
        part = OwnPart(reader, prefix)
        found = {n: torch.zeros(i.shape, dtype=i.dtype, device=self.device) for n, i in part.tensors.items()}
        part.read(found)
        return found


class ReplicaPrepared(Prepared):
    """A replica that starts as rank 0's and isn't trained by DistributedDataParallel."""

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        # As DistributedDataParallel does when it is made.
        send_from_first((*self.module.parameters(), *self.module.buffers()))


class ManualDDPPrepared(ReplicaPrepared):
    """Averages gradients after each backward that the module runs itself.

    DistributedDataParallel expects one backward per forward, and the forward before it; a module
    that steps several optimizers, as a GAN does, has neither. Averaging a gradient again leaves what
    is already equal on all ranks as it is, so gradients may accumulate over backwards.

    Args:
        request: as everywhere.
        dtype: that gradients are averaged in; None for their own.
    """

    def __init__(self, request: SetupRequest, dtype: torch.dtype | None = None) -> None:
        super().__init__(request)
        self._dtype = dtype
        self._syncing = True
        self._touched: set[torch.nn.Parameter] = set()
        self._trainable = [p for p in self.module.parameters() if p.requires_grad]
        for parameter in self._trainable:
            parameter.register_post_accumulate_grad_hook(self._touched.add)  # type: ignore[no-untyped-call]

    def manual_step(self, *args: Any) -> Any:
        send_from_first(self.module.buffers())
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
        touched = [parameter in self._touched for parameter in self._trainable]
        self._touched.clear()
        for flat in in_few_pieces(gradients_of_any(self._trainable, touched, self.device)):
            if self._dtype is None:
                dist.all_reduce(flat)
                flat.div_(dist.get_world_size())
            else:
                # Divided first: a sum overflows earlier than a mean.
                sent = flat.to(self._dtype).div_(dist.get_world_size())
                dist.all_reduce(sent)
                flat.copy_(sent)
