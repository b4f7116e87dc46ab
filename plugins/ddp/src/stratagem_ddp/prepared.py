"""What the loop calls per step under ddp."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.exchange import StoreExchange
from stratagem_sharding.gradient_tracker import GradientTracker
from stratagem_sharding.own_part import OwnPart
from stratagem_sharding.rank_buffers import RankBuffers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.nn.parallel import DistributedDataParallel

from stratagem import CombinationError, SetupRequest, place
from stratagem.sdk.loops import skippable
from stratagem_ddp.local_sgd import average
from stratagem_ddp.power_sgd import PowerSGDMemory
from stratagem_ddp.registration import (
    hook_state,
    local_sgd,
    refuse_own_parameters,
    refuse_unfit,
    register,
)
from stratagem_ddp.tracked import TrackedDDP
from stratagem_ddp.tracked_gradients import TrackedGradients

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from stratagem import CheckpointReader
    from stratagem_ddp.strategy import DDPStrategy

OWN = "ddp/rank"
"""Prefix of a rank's own tensors in a checkpoint; the rank and a slash follow."""
FACTORS = "ddp/factor/"
"""Prefix of PowerSGD's factors in a checkpoint. They are the same on all ranks."""


class DDPPrepared(TrackedGradients):
    """A replica under DistributedDataParallel. Evaluation calls the replica itself.

    Under local SGD, the ranks' parameters and optimizer states differ. A checkpoint has their averages, which
    evaluations use, and from which any other strategy or number of ranks resumes. It also has each rank's
    own values, so that the same number of ranks continues exactly.
    """

    _in_backward = False

    def __init__(self, request: SetupRequest, strategy: DDPStrategy) -> None:
        refuse_own_parameters(request.original_module)
        self._replica = place(request)
        self._collectives = request.collectives
        self._hook_state = hook_state(strategy, request.original_module, request.collectives)
        self._exchange = StoreExchange(request.collectives)
        settings = strategy

        def construct(module: nn.Module) -> DistributedDataParallel:
            nonlocal settings
            ddp = settings.configure_ddp(module, request.device)
            settings = strategy.without_init_sync()  # later ones wrap parameters that have been trained
            return ddp

        self._tracked = TrackedDDP(
            self._replica,
            list(request.original_module.named_parameters()),
            construct,
            partial(register, strategy, state=self._hook_state),
            self._exchange,
            may_drift=isinstance(self._hook_state, PostLocalSGDState),
        )
        self._gradients: GradientTracker | None = None
        if request.collectives.world_size > 1 and not isinstance(self._hook_state, PostLocalSGDState):
            self._gradients = GradientTracker(
                request.original_module.named_parameters(),
                self._exchange,
                request.device,
                self._tracked.is_reduced,
                self._completes_raw_backwards,
            )
        if self._tracked.ddp is None:
            settings = strategy.without_init_sync()
            broadcast_coalesced((*self._replica.parameters(), *self._replica.buffers()))
        ddp = self._tracked.ddp
        local = strategy.buffers == "local" or (ddp is not None and not ddp.broadcast_buffers)
        self._rank_buffers = RankBuffers(request.original_module, request.collectives, local=local)
        super().__init__(request, self._tracked.module)
        refuse_unfit(request, self.optimizers, self._hook_state)
        self._refuse_unfit = partial(refuse_unfit, request, self.optimizers, self._hook_state)
        self._local = local_sgd(strategy, self._replica, self._hook_state, request.collectives)
        self._windows = count()  # numbers of accumulation windows, the same on all ranks
        self._has_loss = False
        self._expects_reduction = False
        """Whether a forward has prepared a reduction since the last backward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._follow()
        if torch.is_grad_enabled():
            self._rank_buffers.before_forward()
        return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        tracked = self._tracked
        try:
            output = super().forward(*args, **kwargs)
        except RuntimeError as error:
            if str(error).startswith("Expected to have finished reduction"):
                raise tracked.unused(error) from error
            raise
        if tracked.prepares_reduction:
            self._expects_reduction = True
            if self._gradients is not None:
                self._gradients.expect_reduction()
        return None if output is tracked.nothing else output

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        if not sync:
            with self.no_sync():
                output = self._forward(*args)
                self._has_loss = self.backward_of(output, divisor) or self._has_loss
            return output
        output = self.forward(*args)
        window = next(self._windows)
        if not self.backward_of(output, divisor):
            self._reduce_without_loss(window)
        self._tracked.check_reduced()
        self._has_loss = False
        return output

    def _follow(self) -> None:
        """Reset state that depends on which parameters require gradients. Collective if these have changed."""
        if not torch.is_grad_enabled():
            return
        averages = not self._tracked.is_abandoned
        if not self._tracked.follow():
            return
        if self._gradients is not None:
            self._gradients.expects_reduction = False  # its reducer has been replaced
        if averages:
            self._note_average()
        self.module = self._tracked.module
        self._refuse_unfit()
        if isinstance(self._hook_state, PowerSGDMemory):
            self._hook_state.forget_layout()
        if self._local is not None:
            self._local.include(
                parameter for parameter in self._replica.parameters() if parameter.requires_grad
            )

    def _reduce_without_loss(self, window: int) -> None:
        """Reduce gradients of this window's other micro-batches; drop them if no rank had a loss."""
        if self._has_loss:
            self._tracked.reduce_without_loss(super().backward)
            self._note_average()
            return
        # Announce before the reduction and read after it: no rank finishes the reduction before all have begun it.
        name, size = self._group_without_loss(window)
        self._exchange.announce(name)
        state = self._hook_state
        forget = state.rollback() if isinstance(state, PowerSGDMemory) else None
        self._tracked.reduce_without_loss(super().backward)
        self._wait_for_device()
        self._note_average()
        if self._exchange.announced(name) < size:
            return
        self._tracked.drop_gradients()
        if forget is not None:
            forget()

    def _group_without_loss(self, window: int) -> tuple[str, int]:
        """Return a name for a window among the ranks that average gradients, and the number of these ranks."""
        state, world_size, rank = self._hook_state, self._collectives.world_size, self._collectives.rank
        name = f"none/{window}"
        if not isinstance(state, PostLocalSGDState) or state.iter < state.start_localSGD_iter:
            return name, world_size
        size = dist.get_world_size(state.subgroup) if state.post_local_gradient_allreduce else 1
        return f"{name}/{rank // size}", size

    def _wait_for_device(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._replica, *args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._rank_buffers.compare()
        self._agree_on_buffers()
        with nullcontext() if self._local is None else self._local.averaged():
            yield

    def no_sync(self) -> AbstractContextManager[Any]:
        self._follow()  # a DDP constructed within the context would still reduce
        ddp = self._tracked.ddp
        return nullcontext() if ddp is None else ddp.no_sync()

    # It completes this module's gradients. Gradients of other modules are completed before their step.
    @skippable
    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if self._gradients is None:
            if self._expects_reduction:
                self._tracked.refuse_changed_flags()
            self._expects_reduction = False
            super().backward(loss, **kwargs)
            return
        if self._gradients.expects_reduction:
            self._tracked.refuse_changed_flags()
        self._gradients.before_backward()
        self._in_backward = True
        try:
            super().backward(loss, **kwargs)
        finally:
            self._in_backward = False
        ddp = self._tracked.ddp
        if ddp is not None and ddp.require_backward_grad_sync:
            self._gradients.complete_backward()

    def _completes_raw_backwards(self) -> bool:
        ddp = self._tracked.ddp
        return not self._in_backward and ddp is not None and ddp.require_backward_grad_sync

    def abandon_backward(self) -> None:
        if self._gradients is None or self._gradients.abandon_reduction():
            self._tracked.abandon_reduction()

    def complete_gradients(self, index: int) -> None:
        if self._gradients is not None:
            if self._gradients.is_interrupted():
                self._tracked.check_reduced()
            if self._gradients.expects_reduction:
                self._tracked.refuse_changed_flags()
            super().complete_gradients(index)
            self._tracked.forget_stray()

    def averaged_ranks(self) -> int:
        if isinstance(self._hook_state, PostLocalSGDState):
            raise CombinationError(
                "with post_local_sgd each rank steps by its own gradients, which weights of the losses on all ranks "
                "can't divide: return the mean of the losses, or choose ddp"
            )
        return super().averaged_ranks()

    def average_gradients(self, index: int) -> None:
        super().average_gradients(index)
        self._tracked.forget_stray()

    # Without local SGD it does the same as its base class.
    @skippable
    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        applied = super().step(index, closure)
        if self._local is not None and index == len(self.optimizers) - 1:
            self._local.after_step()
        return applied

    def replicas(self) -> Iterator[tuple[str, Any]]:
        if self._local is None:
            return super().replicas()
        # Between two averages, the ranks' parameters and optimizer states differ.
        own, named = self._local.ids, self.original_module.named_parameters()
        return ((f"parameter {name!r}", parameter) for name, parameter in named if id(parameter) not in own)

    @property
    def steps_directly(self) -> bool:
        return self._local is None and super().steps_directly

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._rank_buffers.compare()
        self._agree_on_buffers()
        if not self._drifted:
            return super().model_tensors()
        assert self._local is not None
        own = self._local.ids
        names = self.original_module.named_parameters(remove_duplicate=False)
        trained = {f"model/{name}" for name, parameter in names if id(parameter) in own}
        return self._averaged(super().model_tensors(), trained)

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        tensors = super().optimizer_tensors()
        own = f"{OWN}{self._collectives.rank}/"
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
        if self._tracked.order is not None:
            hidden["bucket_order"] = self._tracked.order
        if self._local is not None:
            hidden["local_sgd"] = {"steps": self._local.steps, "drifted": self._drifted}
        if isinstance(self._hook_state, PowerSGDMemory):
            hidden["power_sgd"] = self._hook_state.counters()
        return {**super().state(), **({"ddp": hidden} if hidden else {})}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        hidden = {} if model_only else state.get("ddp", {})
        local = hidden.get("local_sgd", {})
        self._tracked.restore_order(hidden.get("bucket_order"))
        if self._local is not None:
            # So that the parameters themselves are loaded, not copies of their averages.
            self._local.steps = 0
        same = reader.world_size == self._collectives.world_size
        if self._local is not None and local.get("drifted") and same:
            super().load(OwnPart(reader, f"{OWN}{self._collectives.rank}/"), state)
        else:
            super().load(reader, state, model_only=model_only)
        if not model_only:
            self._rank_buffers.load(reader)
        if self._local is not None:
            self._local.steps = local.get("steps", 0)
            if isinstance(self._hook_state, PostLocalSGDState):
                self._hook_state.iter = min(self._local.steps, self._hook_state.start_localSGD_iter)
        if isinstance(self._hook_state, PowerSGDMemory) and "power_sgd" in hidden:
            errors: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
            for rank in self._ranks(reader):
                for name, error in self._read(reader, f"{OWN}{rank}/error/").items():
                    errors[name].append(error)
            # With another number of ranks, each gets the mean error: that is what averaged gradients lack.
            mean = {name: torch.stack(of_ranks).mean(0) for name, of_ranks in errors.items()}
            self._hook_state.restore(mean, self._read(reader, FACTORS), hidden["power_sgd"])

    def restore_module(self) -> None:
        super().restore_module()
        self._agree_on_buffers()
        if self._local is not None:
            self._local.agree()

    def release(self) -> None:
        super().release()
        self._tracked.release()
        del self._tracked, self._local, self._hook_state, self._refuse_unfit

    # --------------------------------------------------------------------------------------------

    @property
    def _drifted(self) -> bool:
        return self._local is not None and self._local.drifted

    def _averaged(self, tensors: dict[str, torch.Tensor], names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return `tensors`; those in `names` that all ranks have are replaced by averaged copies. Collective."""
        ours = [name for name in tensors if name in names and tensors[name].is_floating_point()]
        everywhere = set(ours).intersection(*self._collectives.gather_objects(ours))
        copies = {
            name: tensors[name].detach().to(self.device, copy=True) for name in ours if name in everywhere
        }
        average(list(copies.values()))
        return {**tensors, **copies}

    def _agree_on_buffers(self) -> None:
        """Give all ranks the buffers of rank 0, as the next forward in training would. Collective."""
        if not self._rank_buffers.are_local:
            broadcast_coalesced(self._replica.buffers())

    def _ranks(self, reader: CheckpointReader) -> Iterable[int]:
        same = reader.world_size == self._collectives.world_size
        return (self._collectives.rank,) if same else range(reader.world_size)

    def _read(self, reader: CheckpointReader, prefix: str) -> dict[str, torch.Tensor]:
        part = OwnPart(reader, prefix)
        found = {n: torch.zeros(i.shape, dtype=i.dtype, device=self.device) for n, i in part.tensors.items()}
        part.read(found)
        return found
