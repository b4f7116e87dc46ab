"""The faults of further.yaml, each as a component, with the checks that are tried on it."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from averaging import AveragedPrepared
from planting import Fault, compares_nothing, strategy_of
from stratagem_checkpoint.directory import DirectoryCheckpointer
from stratagem_clusters import Env
from stratagem_cpu import CpuAccelerator
from stratagem_launch import ElasticLauncher
from torch import nn
from wrong_parts import VARIABLES, SavesLater

from stratagem import (
    Accelerator,
    Checkpointer,
    Environment,
    Launcher,
    Precision,
    ProcessGroupCollectives,
    Strategy,
    WorkerError,
)
from stratagem.errors import CheckpointError
from stratagem.precision.full import FullPrecision
from stratagem.precision.mixed import MixedPrecision, ScaledPrecision

SECTIONS: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("further.yaml").read_text(encoding="utf-8")
)
"""Section of further.yaml → name of a fault → what is wrong."""
AREA_OF = {
    name: "exact" if section == "strategy" else section
    for section, names in SECTIONS.items()
    for name in names
}
FURTHER: list[tuple[Fault, tuple[str, ...]]] = []
"""Each fault of further.yaml, and the checks that are tried on it, in this order."""
IMPOSSIBLE = {
    "lists_by_text": "a checkpointer saves, opens and removes paths; the trainer lists them",
    "keeps_random_numbers": "an accelerator has no random state; the core restores that of torch's device modules",
}
"""Name in further.yaml → why no component can have this fault."""
KINDS: dict[type[Any], str] = {
    Strategy: "strategy",
    Checkpointer: "checkpoint",
    Precision: "precision",
    Environment: "environment",
    Launcher: "launcher",
    Accelerator: "accelerator",
}


def planted(name: str, *checks: str) -> Any:
    def register(cls: type[Any]) -> type[Any]:
        part = cls
        if issubclass(cls, (AveragedPrepared, ProcessGroupCollectives)):
            if issubclass(cls, AveragedPrepared):
                cls.replicas = compares_nothing  # or that would notice before a check does
            part = strategy_of(cls)
        kind = next(kind for base, kind in KINDS.items() if issubclass(part, base))
        subject: dict[str, Any] = {}
        if kind == "precision":
            subject = {"asked_as": part.asked_as}
        elif kind == "environment":
            subject = {"examples": ((VARIABLES, {"global_rank": 3}),)}
        FURTHER.append((Fault(AREA_OF[name], name, part, checks[0], kind=kind, subject=subject), checks))
        return cls

    return register


@planted("divides_by_one_rank_fewer", "parity")
class DividesByFewer(AveragedPrepared):
    def average(self) -> None:
        super().average()
        for p in self.original_module.parameters():
            if p.grad is not None:
                p.grad *= self.world_size / max(1, self.world_size - 1)


@planted("sums_gradients", "parity")
class Sums(AveragedPrepared):
    def average(self) -> None:
        super().average()
        for p in self.original_module.parameters():
            if p.grad is not None:
                p.grad *= self.world_size


@planted("reduces_first_group_only", "parity", "optimizers")
class ReducesFirstGroup(AveragedPrepared):
    def averaged(self) -> Any:
        return self.optimizers[0].param_groups[0]["params"] if self.optimizers else ()


@planted("reduces_in_bf16", "parity")
class ReducesInHalves(AveragedPrepared):
    def average(self) -> None:
        for p in self.original_module.parameters():
            if p.grad is not None:
                p.grad = p.grad.bfloat16().to(p.grad.dtype)
        super().average()


@planted("leaves_buffers_apart", "same_start")
class LeavesBuffers(AveragedPrepared):
    def start(self) -> None:
        for p in self.original_module.parameters():
            dist.broadcast(p.detach(), 0)


@planted("leaves_initial_values", "same_start")
class LeavesValues(AveragedPrepared):
    def start(self) -> None:
        pass


@planted("averages_each_micro_batch_again", "accumulation")
class AveragesAgain(AveragedPrepared):
    def no_sync(self) -> Any:
        return nullcontext()

    def average(self) -> None:
        super().average()
        for p in self.original_module.parameters():
            if p.grad is not None:
                p.grad /= self.world_size


@planted("drops_closure", "closure")
class DropsClosure(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        return super().step(index)


@planted("steps_on_first_rank_only", "parity")
class StepsOnFirst(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        return super().step(index, closure) if self.request.collectives.rank == 0 else True


@planted("clips_own_gradients", "norm_clipping")
class ClipsOwn(AveragedPrepared):
    def average(self) -> None:
        if self.clipping.max_norm is not None:
            nn.utils.clip_grad_norm_(self.original_module.parameters(), self.clipping.max_norm)
        super().average()


@planted("clips_values_as_norm", "value_clipping")
class ClipsByNorm(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        if clipping.max_value is not None:
            return nn.utils.clip_grad_norm_(self._parameters[index], clipping.max_value)
        return super().clip(index, clipping)


@planted("gathers_own_value", "collectives")
class GathersOwn(ProcessGroupCollectives):
    def all_gather(self, tensor: Any, sync_grads: bool = False) -> Any:
        return tensor.unsqueeze(0).repeat(self.world_size, *[1] * tensor.dim())


@planted("broadcasts_from_first", "collectives")
class BroadcastsFirst(ProcessGroupCollectives):
    def broadcast(self, value: Any, src: int = 0) -> Any:
        return super().broadcast(value, 0)


@planted("reduces_max_as_sum", "collectives")
class SumsMax(ProcessGroupCollectives):
    def all_reduce(self, tensor: Any, op: Any = "mean") -> Any:
        return super().all_reduce(tensor, "sum" if op == "max" else op)


class Loaders(AveragedPrepared):
    def dataloader(self, loader: Any) -> Any:
        loader = super().dataloader(loader)
        return self.change(list(loader)) if self.request.loop.training else loader

    def change(self, batches: list[Any]) -> Any:
        return batches


@planted("same_samples_everywhere", "parity")
class SameSamples(Loaders):
    def change(self, batches: list[Any]) -> Any:
        return self.request.collectives.broadcast(batches)


@planted("same_order_each_epoch", "parity")
class SameOrder(Loaders):
    """The batches of the first epoch come in each epoch."""

    first: Any = None

    def change(self, batches: list[Any]) -> Any:
        self.first = self.first or batches
        return self.first


@planted("drops_uneven_rest", "uneven_samples", "every_sample_once")
class DropsRest(Loaders):
    def change(self, batches: list[Any]) -> Any:
        return batches[:-1]


@planted("prefixes_names", "parity")
class Prefixes(AveragedPrepared):
    def model_tensors(self) -> Any:
        return {f"model/module.{k.removeprefix('model/')}": v for k, v in super().model_tensors().items()}


@planted("keeps_training_mode", "checkpoint_is_what_was_evaluated", "validation_changes_nothing")
class KeepsTraining(AveragedPrepared):
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.original_module.train()
        return super().evaluate(*args, **kwargs)


@planted("swaps_optimizer_state", "save_and_load", "state_of_every_kind")
class SwapsState(AveragedPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for optimizer in self.optimizers:
            like: dict[Any, Any] = {}
            for p in list(optimizer.state):
                other = like.setdefault(p.shape, p)
                optimizer.state[p], optimizer.state[other] = optimizer.state[other], optimizer.state[p]


@planted("loses_step_counter", "save_and_load")
class LosesCounter(AveragedPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for optimizer in self.optimizers:
            for kept in optimizer.state.values():
                if "step" in kept:
                    kept["step"].zero_()


@planted("ignores_changed_rate", "schedulers")
class IgnoresRate(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        for group in self.optimizers[index].param_groups:
            group["lr"] = group["initial_lr"] = group.setdefault("first_lr", group["lr"])
        return super().step(index, closure)


@planted("misses_unfrozen", "frozen_in_mid_run", "changes_between_steps")
class MissesUnfrozen(AveragedPrepared):
    def start(self) -> None:
        super().start()
        self.trained = [p for p in self.original_module.parameters() if p.requires_grad]

    def averaged(self) -> Any:
        return self.trained


@planted("leaves_group_open", "ranks", "collectives", "parity", "own_loop")
class LeavesOpen(ProcessGroupCollectives):
    def close(self, failed: bool = False) -> None:
        pass


@planted("seeds_ranks_alike", "ranks_draw_apart", "seed")
class SeedsAlike(AveragedPrepared):
    def dataloader(self, loader: Any) -> Any:
        torch.manual_seed(5)
        return super().dataloader(loader)


@planted("calls_hooks_twice", "penalties", "buffers", "own_loop")
class CallsTwice(AveragedPrepared):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        super().forward(*args, **kwargs)
        return super().forward(*args, **kwargs)


@planted("saves_own_part", "parity")
class SavesPart(AveragedPrepared):
    def model_tensors(self) -> Any:
        return dict(list(super().model_tensors().items())[:-1])


@planted("drops_loss_of_step", "closure", "line_search")
class DropsLoss(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> Any:
        if closure is None:
            return super().step(index)

        def evaluate() -> None:
            closure()

        return super().step(index, evaluate)


# Checkpointers ------------------------------------------------------------------------------------------


class Changed(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        tensors, state = self.tensors(dict(checkpoint.tensors)), self.state(dict(checkpoint.state))
        super().save(path, type(checkpoint)(tensors, state, checkpoint.rank_state))

    def tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return tensors

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state


@planted("keeps_references", "snapshot", "turn")
class KeepsReferences(SavesLater):
    """Saves what was handed in as it is by then."""


@planted("loses_strides", "round_trip")
class LosesStrides(Changed):
    def tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return {k: v if v.is_contiguous() else v.T.contiguous().reshape(v.shape) for k, v in tensors.items()}


@planted("drops_empty", "round_trip")
class DropsEmpty(Changed):
    def tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in tensors.items() if v.numel()}


@planted("replaces_targets", "round_trip")
class ReplacesTargets(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        reader = super().open(path, verify)
        read = reader.read

        def replace(targets: Any) -> None:
            copies = {k: v.clone() for k, v in targets.items()}
            read(copies)
            targets.update(copies)

        reader.read = replace
        return reader


@planted("mangles_names", "round_trip", "other_world_size")
class MangledNames(Changed):
    def tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return {k.replace(".", "_"): v for k, v in tensors.items()}


@planted("loses_integers_as_keys", "round_trip")
class TextKeys(Changed):
    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        numbered = state.get("by_number", {})
        return {**state, "by_number": {str(k): v for k, v in numbered.items()}}


@planted("loses_infinity", "round_trip")
class LosesInfinity(Changed):
    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        numbered = state.get("by_number", {})
        return {**state, "by_number": {k: v if k == 3 else [None, None] for k, v in numbered.items()}}


@planted("destroys_former", "failure", "killed_while_replacing")
class DestroysFormer(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        super().remove(path)
        super().save(path, checkpoint)


@planted("offers_unfinished", "refuses_damage")
class OffersUnfinished(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        try:
            return super().open(path, verify)
        except CheckpointError:
            return type("Empty", (), {"read": lambda self, targets: None})()


@planted("loads_other_dtype", "round_trip")
class OtherDtype(Changed):
    def tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in tensors.items()}


# Precisions ---------------------------------------------------------------------------------------------


@planted("converts_integers", "converts_batches")
class ConvertsIntegers(FullPrecision):
    asked_as = "64-true"

    def convert_input(self, batch: Any) -> Any:
        converted = super().convert_input(batch)
        if isinstance(converted, dict):
            converted["x"] = [converted["x"][0], (converted["x"][1][0].double(), "text")]
        return converted


@planted("forgets_scale", "state", "resumes")
class ForgetsScale(ScaledPrecision):
    asked_as = "16-mixed"

    def state_dict(self) -> dict[str, Any]:
        return {}


@planted("unscales_twice", "true_gradients")
class UnscalesTwice(ScaledPrecision):
    asked_as = "16-mixed"

    def unscale(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= 65536.0


@planted("skips_alone", "scaled_steps")
class SkipsAlone(AveragedPrepared):
    """A rank whose own gradients overflow leaves its step out by itself."""

    def average(self) -> None:
        grads = [p.grad for p in self.original_module.parameters() if p.grad is not None]
        self.overflowed = not all(bool(g.isfinite().all()) for g in grads)
        for grad in grads:
            grad.nan_to_num_(0.0, 0.0, 0.0)
        super().average()

    def step(self, index: int, closure: Any = None) -> bool:
        return False if self.overflowed else super().step(index, closure)


@planted("leaves_autocast_on", "contexts_end")
class LeavesAutocast(MixedPrecision):
    asked_as = "bf16-mixed"

    def autocast(self) -> Any:
        entered = torch.autocast(self.device_type, dtype=self.compute_dtype)
        entered.__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it
        return nullcontext()


@planted("no_autocast_in_training", "contexts_end", "computes_as_named")
class NoAutocast(MixedPrecision):
    asked_as = "bf16-mixed"

    def autocast(self) -> Any:
        return None


# Others -------------------------------------------------------------------------------------------------


@planted("swaps_local_rank", "place")
class SwapsLocalRank(Env):
    @property
    def global_rank(self) -> int:
        return self.local_rank


@planted("returns_last_rank", "runs_every_rank")
class ReturnsLast(ElasticLauncher):
    def launch(self, task: Any) -> Any:
        value = super().launch(task)
        return value.replace("rank 0", "rank 1") if isinstance(value, str) else value


@planted("swallows_failure", "tells_errors")
class Swallows(ElasticLauncher):
    def launch(self, task: Any) -> Any:
        with suppress(WorkerError):
            return super().launch(task)


@planted("parses_count_as_index", "indices")
class CountsAsIndex(CpuAccelerator):
    def check_index(self, index: int) -> str | None:
        return None if index == self.device_count() else f"there is no index {index} here {os.getpid()}"
