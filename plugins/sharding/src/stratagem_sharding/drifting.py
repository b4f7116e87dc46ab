"""`DriftingPrepared`: replicas that step independently; other code sees one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable

import torch
import torch.distributed as dist

from stratagem import CheckpointReader, CombinationError, ConfigError, Prepared, SetupRequest
from stratagem.sdk.shards import fingerprint
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets
from stratagem_sharding.own_part import OwnPart

__all__ = ["DriftingPrepared"]

Tensors = dict[str, torch.Tensor]


class DriftingPrepared(Prepared):
    """A replica whose parameters, buffers and optimizer states are local between two synchronisations.

    Evaluations, checkpoints and the final module use the average of the parameters and rank 0's buffers. A checkpoint
    also contains each rank's local values: the same number of ranks continues exactly. Any other number of ranks, and
    any other strategy, resumes from the average.
    A subclass overrides `after_step`, which averages when an average is due. It overrides `kept` and `restore` for
    state that it keeps from step to step. It may call `agree`. This class does everything else.

    Args:
        request: as the `setup` hook received it.
        name: the strategy's name, used as a prefix of its tensor names in a checkpoint.

    Attributes:
        steps: optimizer steps so far, the same number on every rank.

    Raises:
        ConfigError: the step of an optimizer needs all ranks.
    """

    def __init__(self, request: SetupRequest, name: str) -> None:
        super().__init__(request)
        self._name = name
        self._collectives = request.collectives
        self.steps = 0
        # Importing the class takes long, and warns.
        for optimizer in self.optimizers:
            if any(cls.__name__ == "ZeroRedundancyOptimizer" for cls in type(optimizer).__mro__):
                raise ConfigError(
                    f"under {name} each replica steps independently, and ZeroRedundancyOptimizer needs all ranks in "
                    "one step: choose SGD, AdamW or another optimizer that steps on each rank, or strategy ddp"
                )
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))

    def after_step(self) -> None:
        """Synchronise the replicas if that is due after optimizer step `steps`. Collective when it is due."""
        raise NotImplementedError

    def kept(self) -> tuple[Tensors, Tensors, dict[str, Any]]:
        """Return state for an exact resume: tensors equal on all ranks, tensors of this rank, and JSON values."""
        return {}, {}, {}

    def restore(self, shared: Tensors, own: Tensors | None, state: Mapping[str, Any]) -> None:
        """Restore what `kept` returned. If it is empty, start from the current parameters.

        Args:
            shared: values that were equal on all ranks.
            own: this rank's values; None if another number of ranks wrote the checkpoint.
            state: the JSON values; empty if another strategy wrote the checkpoint.
        """

    def averaged_ranks(self) -> int:
        """Refuse loss weights if there are several replicas, since gradients aren't averaged between them."""
        if self._collectives.world_size == 1:
            return super().averaged_ranks()
        raise CombinationError(
            f"under {self._name} each replica steps by its own gradients, which weights of the losses on all ranks "
            "can't divide: return the mean of the losses, or choose strategy ddp"
        )

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        """Step this replica. After the last optimizer's step, increment `steps` and call `after_step`."""
        applied = super().step(index, closure)
        if index == len(self.optimizers) - 1:
            self.steps += 1
            self.after_step()
        return applied

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        """Yield nothing: these replicas differ on purpose, so they aren't compared."""
        return iter(())

    # What other code sees -------------------------------------------------------------------

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate with averaged parameters and rank 0's buffers, then restore this rank's values. Collective."""
        if not self._drifted:
            yield
            return
        parameters = self._differing(dict(self.original_module.named_parameters()))
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        buffers = list(self.original_module.buffers())
        own_buffers = [buffer.clone() for buffer in buffers]
        self._average(parameters)
        broadcast_coalesced(buffers)
        shown = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    parameters[name].copy_(value)
                for buffer, value, mine in zip(buffers, shown, own_buffers):
                    if torch.equal(buffer, value):  # keep a buffer that the evaluation changed
                        buffer.copy_(mine)

    def restore_module(self) -> None:
        """Set the averaged parameters and rank 0's buffers on every rank. Collective."""
        super().restore_module()
        if self._drifted:
            self.agree()
            broadcast_coalesced(self.original_module.buffers())

    def agree(self) -> None:
        """Average the parameters that differ between ranks, in place. Collective."""
        self._average(self._differing(dict(self.original_module.named_parameters())))

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> Tensors:
        """Return the averaged parameters and rank 0's buffers. Collective."""
        tensors = super().model_tensors()
        if not self._drifted:
            return tensors
        names = {f"model/{name}" for name, _ in self.original_module.named_parameters(remove_duplicate=False)}
        parameters = {name: tensors[name] for name in tensors if name in names}
        buffers = {name: tensors[name].clone() for name in tensors if name not in names}
        broadcast_coalesced(buffers.values())
        return {**tensors, **buffers, **self._averaged(parameters)}

    def optimizer_tensors(self) -> Tensors:
        """Return the averaged optimizer states, this rank's own model and states, and the tensors of `kept`."""
        tensors, own = super().optimizer_tensors(), self._own
        shared, extra, _ = self.kept()
        more = {f"{self._name}/shared/{key}": value for key, value in shared.items()}
        more.update({f"{own}extra/{key}": value for key, value in extra.items()})
        if not self._drifted:
            return {**tensors, **more}
        drifted = {f"{own}{key}": value for key, value in {**super().model_tensors(), **tensors}.items()}
        return {**tensors, **self._averaged(tensors), **drifted, **more}

    def state(self) -> dict[str, Any]:
        hidden = {"steps": self.steps, "drifted": self._drifted, **self.kept()[2]}
        return {**super().state(), self._name: hidden}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        hidden = {} if model_only else state.get(self._name, {})
        same = reader.world_size == self._collectives.world_size
        self.steps = 0  # so that the load below fills the parameters, not copies of their averages
        if hidden.get("drifted") and same:
            super().load(OwnPart(reader, self._own), state)
        else:
            super().load(reader, state, model_only=model_only)
        self.steps = hidden.get("steps", 0)
        shared = OwnPart(reader, f"{self._name}/shared/").read_all() if hidden else {}
        own = OwnPart(reader, f"{self._own}extra/").read_all() if hidden and same else None
        self.restore(shared, own, hidden)

    # --------------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        return f"{self._name}/rank{self._collectives.rank}/"

    @property
    def _drifted(self) -> bool:
        return self._collectives.world_size > 1 and self.steps > 0

    def _averaged(self, tensors: Tensors) -> Tensors:
        """Return averaged copies of the tensors that differ between ranks. Collective."""
        copies = {name: tensor.detach().clone() for name, tensor in self._differing(tensors).items()}
        self._average(copies)
        return copies

    def _average(self, tensors: Tensors) -> None:
        for flat in flattened_buckets(tensors.values()):
            dist.all_reduce(flat)
            flat.div_(self._collectives.world_size)

    def _differing(self, tensors: Tensors) -> Tensors:
        """Return the floating-point tensors that exist on all ranks but have different values. Collective."""
        named = {
            name: tensor.detach()
            for name, tensor in tensors.items()
            if tensor.is_floating_point() or tensor.is_complex()
        }
        prints = {name: int(fingerprint([tensor], tensor.device)) for name, tensor in named.items()}
        ranks = self._collectives.gather_objects(prints)
        return {
            name: tensors[name]
            for name in sorted(named)
            if all(name in each for each in ranks) and len({each[name] for each in ranks}) > 1
        }
