"""Strategies that do one thing wrong each, and the check that must catch it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from averaging import FEATURES, AveragedPrepared, Averaging
from planting import caught_by, compares_nothing
from torch import nn

from stratagem import Capabilities, Launcher, ParallelStrategy, ProcessGroupCollectives, hookimpl

# What it says of itself ---------------------------------------------------------------------------------


@caught_by("refuses_undeclared", "a setting that doesn't exist")
class TakesAnything(Averaging):
    def __init__(self, **anything: Any) -> None:
        super().__init__()


# What ranks say to each other ---------------------------------------------------------------------------


class OpensNothing(ParallelStrategy):
    """Derived from the base, and no more: every process would train alone."""

    start_method = "fork"


@caught_by("ranks", "local ranks aren't")
class AllFirst(ProcessGroupCollectives):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.local_rank = 0


@caught_by("collectives", "all_reduce 'product'")
class SumsProducts(ProcessGroupCollectives):
    def all_reduce(self, tensor: Any, op: Any = "mean") -> Any:
        return super().all_reduce(tensor, "sum" if op == "product" else op)


@caught_by("collectives", "unequal shapes")
class MixesShapes(ProcessGroupCollectives):
    """Takes tensors of unequal shapes, of which torch makes what it likes."""

    def _agree(self, call: str) -> None:
        pass


@caught_by("collectives", "has left the barrier before rank 0")
class PassesBarriers(ProcessGroupCollectives):
    def barrier(self, name: Any = None) -> None:
        pass


@caught_by("all_gather_gradients", "does not require grad")
class CutsGradients(ProcessGroupCollectives):
    def all_gather(self, tensor: Any, sync_grads: bool = False) -> Any:
        return super().all_gather(tensor)


# The numbers of one process -----------------------------------------------------------------------------


@caught_by("parity", "the loss of micro-batch 1 is")
class AveragesTwice(AveragedPrepared):
    def average(self) -> None:
        super().average()
        for parameter in self.original_module.parameters():
            parameter.grad /= self.world_size


@caught_by("precisions", "64-true")
class StaysInFloat32(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        if self.precision.name == "64-true":
            self.original_module.float()
            self.precision.param_dtype = None
            self.is_direct = True


@caught_by("precisions", "at a rate of zero")
class RoundsWeights(AveragedPrepared):
    """Begins under mixed precision with what 16 bits leave of the weights."""

    def start(self) -> None:
        super().start()
        if self.precision.name == "bf16-mixed":
            for parameter in self.original_module.parameters():
                parameter.data = parameter.data.bfloat16().float()


@caught_by("precisions", "torch.bfloat16")
class LeavesHalves(AveragedPrepared):
    """Leaves a module behind that has its weights in 16 bits."""

    def release(self) -> None:
        super().release()
        if self.precision.name == "bf16-mixed":
            self.original_module.bfloat16()


@caught_by("accumulation", "accumulate=2")
class KeepsTheLastMicroBatch(AveragedPrepared):
    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        self.zero_grad(0)
        return super().forward_backward(*args, divisor=divisor, sync=sync)


@caught_by("partial_window", "the loss of micro-batch 10 is")
class DividesByFullWindows(AveragedPrepared):
    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        return super().forward_backward(*args, divisor=self.request.loop.accumulate, sync=sync)


@caught_by("global_batch", "away from that of one process")
class RoundsTheDivisor(AveragedPrepared):
    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        return super().forward_backward(*args, divisor=round(divisor), sync=sync)


# Steps without a loss -----------------------------------------------------------------------------------


@caught_by("missing_losses", "the loss of micro-batch")
class StepsWithoutALoss(AveragedPrepared):
    """Takes a window without any loss for one whose gradients are zero."""

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        for parameter in self.original_module.parameters():
            if self.syncing and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return output


@caught_by("some_ranks_without_loss", "the loss of micro-batch")
class LeavesRanksOut(AveragedPrepared):
    """Averages over the ranks that had a loss in the last micro-batch."""

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if self.syncing:
            had = torch.tensor(float(output is not None))
            dist.all_reduce(had)
            for parameter in self.original_module.parameters():
                if parameter.grad is not None and had > 0:
                    parameter.grad *= self.world_size / had
        return output


# Optimizers ---------------------------------------------------------------------------------------------


@caught_by("optimizers", "Groups()")
class ForgetsGroups(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        first, *others = self.optimizers[index].param_groups
        for group in others:
            group["weight_decay"] = first["weight_decay"]
        return super().step(index, closure)


@caught_by("whole_optimizers", "kind='Adafactor'")
class StepsRowsAlone(AveragedPrepared):
    """Says that it steps whole tensors, and steps the halves of each as if they were tensors of their own."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.halves: list[Any] = []
        for optimizer in self.optimizers:
            groups = [
                {
                    **group,
                    "params": [nn.Parameter(half) for p in group["params"] for half in p.detach().chunk(2)],
                }
                for group in optimizer.param_groups
            ]
            self.halves.append(type(optimizer)(groups))

    def step(self, index: int, closure: Any = None) -> bool:
        for group, halves in zip(self.optimizers[index].param_groups, self.halves[index].param_groups):
            grads = [half for p in group["params"] for half in p.grad.chunk(2)]
            for half, grad in zip(halves["params"], grads):
                half.grad = grad
            halves["lr"] = group["lr"]
        self.halves[index].step()
        return True


@caught_by("whole_optimizers", "kind='Adafactor', warms_up=True")
class TriesAtTheFirstRate(StepsRowsAlone):
    """Steps halves where a trial saw no difference: at a rate of 0, with which a schedule begins, there is none."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.is_moving = [optimizer.param_groups[0]["lr"] > 0 for optimizer in self.optimizers]

    def step(self, index: int, closure: Any = None) -> bool:
        return (AveragedPrepared if self.is_moving[index] else StepsRowsAlone).step(self, index, closure)


@caught_by("schedulers", "Scheduled()")
class KeepsTheRate(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.rates = [[group["lr"] for group in each.param_groups] for each in self.optimizers]

    def step(self, index: int, closure: Any = None) -> bool:
        for group, rate in zip(self.optimizers[index].param_groups, self.rates[index]):
            group["lr"] = rate
        return super().step(index, closure)


@caught_by("several_optimizers", "the loss of micro-batch 1 is")
class StepsTheFirst(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        return index > 0 or super().step(index, closure)


@caught_by("closure", "the loss of micro-batch 1 is")
class EvaluatesOnce(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        if closure is None:
            return super().step(index)
        loss = closure()
        return super().step(index, lambda: loss)


@caught_by("line_search", "the loss of micro-batch")
class SearchesForTheFirst(AveragedPrepared):
    """All ranks decide by the loss of rank 0."""

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        self.own = output.detach().clone()
        return output

    def step(self, index: int, closure: Any = None) -> bool:
        def first() -> Any:
            closure()
            dist.broadcast(self.own, 0)
            return self.own

        return super().step(index, first if closure else None)


@caught_by("manual_optimization", "the loss of micro-batch 0 is")
class LeavesManualGradients(AveragedPrepared):
    def average(self) -> None:
        if not self.request.loop.manual:
            super().average()


@caught_by("penalties", "Penalized()")
class HidesBlocksAfterTheirForward(AveragedPrepared):
    """Their parameters are zeros from then to the backward."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.hidden: dict[Any, Any] = {}
        for module in self.original_module.modules():
            for block in module if isinstance(module, nn.ModuleList) else ():
                block.register_forward_hook(self.hide)

    def hide(self, block: Any, *_: Any) -> None:
        for parameter in block.parameters() if torch.is_grad_enabled() else ():
            self.hidden[parameter] = parameter.data
            parameter.data = torch.zeros_like(parameter)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        for parameter, data in self.hidden.items():
            parameter.data = data
        self.hidden.clear()
        super().backward(loss, **kwargs)


@caught_by("stages_in_a_row", "a prediction")
class LosesWhatItTrained(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.first = {name: value.clone() for name, value in self.original_module.state_dict().items()}

    def release(self) -> None:
        super().release()
        self.original_module.load_state_dict(self.first)


@caught_by("lets_go", "aren't freed")
class StaysAlive(AveragedPrepared):
    """Keeps itself, a tensor and an open file."""

    kept: ClassVar[list[Any]] = []

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.kept.append((self, torch.zeros(1000), open(os.devnull)))  # noqa: SIM115  # it stays open


@caught_by("lets_go", "threads aren't freed")
class LeavesThreads(AveragedPrepared):
    def release(self) -> None:
        super().release()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@caught_by("norm_clipping", "max_norm=0.05")
class ClipsEachParameter(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        if clipping.max_norm is None:
            return super().clip(index, clipping)
        for parameter in self._parameters[index]:
            nn.utils.clip_grad_norm_([parameter], clipping.max_norm)
        return None


@caught_by("value_clipping", "max_value=0.005")
class ClipsValuesByNorm(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        if clipping.max_value is not None:
            return nn.utils.clip_grad_norm_(self._parameters[index], clipping.max_value)
        return super().clip(index, clipping)


@caught_by("returned_norm", "clip returns")
class ReturnsTheLimit(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        norm = super().clip(index, clipping)
        return None if norm is None else norm.clamp(max=clipping.max_norm)


@caught_by("returned_norm", "clip returns")
class CountsTiesTwice(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        self.precision.unscale(self.optimizers[index])
        named = self.original_module.named_parameters(remove_duplicate=False)
        grads = [parameter.grad for _, parameter in named if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in grads]))
        for grad in dict.fromkeys(grads):
            grad *= min(1.0, float(clipping.max_norm / norm))
        return norm


@caught_by("returned_norm", "clip returns")
class LeavesScalarsOut(AveragedPrepared):
    """Doesn't average gradients of parameters without dims."""

    def averaged(self) -> Any:
        return [parameter for parameter in self.original_module.parameters() if parameter.dim()]


@caught_by("scaled_steps", "away from that of one process")
class ClipsScaledGradients(AveragedPrepared):
    def clip(self, index: int, clipping: Any) -> Any:
        return nn.utils.clip_grad_norm_(self._parameters[index], clipping.max_norm)


@caught_by("scaled_steps", "reports")
class CountsWhatItLeavesOut(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        super().step(index, closure)
        return True


@caught_by("no_sync", "in no_sync")
class SendsEachMicroBatch(AveragedPrepared):
    def no_sync(self) -> Any:
        return nullcontext()


@caught_by("optimizer_hooks", "tried with WarmUp()")
class ReadsRatesBeforeTheStep(AveragedPrepared):
    """As an engine that takes learning rates with the gradients."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        self.rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, index: int, closure: Any = None) -> bool:
        for group, rate in zip(self.optimizers[index].param_groups, self.rates):
            group["lr"] = rate
        return super().step(index, closure)


@caught_by("changes_between_steps", "tried with Changing()")
class AveragesWhatWasTrainedFirst(AveragedPrepared):
    def start(self) -> None:
        super().start()
        self.trained = [p for p in self.original_module.parameters() if p.requires_grad]

    def averaged(self) -> Any:
        return self.trained


# Modules ------------------------------------------------------------------------------------------------


@caught_by("unused_parameters", "spare.")
class FillsMissingGradients(AveragedPrepared):
    def average(self) -> None:
        for parameter in self.original_module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super().average()


@caught_by("used_on_some_ranks", "the loss of micro-batch")
class AveragesOverThoseThatHave(AveragedPrepared):
    def average(self) -> None:
        have = {p: torch.tensor(float(p.grad is not None)) for p in self.original_module.parameters()}
        super().average()
        for parameter, count in have.items():
            dist.all_reduce(count)
            if parameter.grad is not None:
                parameter.grad *= self.world_size / count


@caught_by("tied_weights", "has lost its tie")
class Unties(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        seen = set()
        for module in request.original_module.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in seen:
                    setattr(module, name, nn.Parameter(parameter.detach().clone()))
                seen.add(parameter)
        super().__init__(request)


@caught_by("frozen_parameters", "has lost requires_grad")
class ThawsAll(AveragedPrepared):
    def start(self) -> None:
        super().start()
        self.original_module.requires_grad_(True)


@caught_by("buffers", "buffer 'net.0.shift' differs between ranks")
class LeavesUnsavedBuffersApart(AveragedPrepared):
    def start(self) -> None:
        super().start()
        saved = self.original_module.state_dict()
        for name, buffer in self.original_module.named_buffers():
            if name not in saved:
                buffer += dist.get_rank()


@caught_by("buffers", "in its checkpoint")
class ForgetsABuffer(AveragedPrepared):
    def model_tensors(self) -> Any:
        forgotten = {f"model/{name}" for name, _ in self.original_module.named_buffers()}
        return {key: value for key, value in super().model_tensors().items() if key not in forgotten}


@caught_by("same_start", "the loss of micro-batch 0 is")
class StartsApart(AveragedPrepared):
    def start(self) -> None:
        # Buffers that differ are refused by themselves.
        for buffer in self.original_module.buffers():
            dist.broadcast(buffer.detach(), 0)


@caught_by("same_start", "the loss of micro-batch 0 is")
class LeavesFrozenOnesApart(AveragedPrepared):
    def start(self) -> None:
        for tensor in (*self.original_module.parameters(), *self.original_module.buffers()):
            if tensor.requires_grad or not isinstance(tensor, nn.Parameter):
                dist.broadcast(tensor.detach(), 0)


# Data ---------------------------------------------------------------------------------------------------


class OtherBatches(AveragedPrepared):
    """Hands on what `change` makes of the batches of training."""

    def dataloader(self, loader: Any) -> Any:
        return self.change(super().dataloader(loader)) if self.request.loop.training else loader

    def change(self, loader: Any) -> Any:
        return loader


@caught_by("nested_batches", "a nested batch arrived as")
class ForgetsNamesOfTuples(OtherBatches):
    def change(self, loader: Any) -> Any:
        for batch in loader:
            if isinstance(batch, dict):
                record = batch["in"][0]
                object.__setattr__(record, "pair", tuple(record.pair))
            yield batch


@caught_by("uneven_samples", "the loss of micro-batch 2 is")
class FillsTheLastBatch(OtherBatches):
    def change(self, loader: Any) -> Any:
        size = 0
        for batch in loader:
            if isinstance(batch, list) and len(batch) == 2:
                size = max(size, len(batch[0]))
                batch = [torch.cat([part, part])[:size] for part in batch]
            yield batch


@caught_by("every_sample_once", "are missing")
class RepeatsSamples(OtherBatches):
    def change(self, loader: Any) -> Any:
        for batch in loader:
            if len(batch) == 3:  # numbered
                batch[2][-1] = batch[2][0]
            yield batch


@caught_by("uneven_inputs", "steps, not 8 each")
class StopsEarly(OtherBatches):
    def change(self, loader: Any) -> Any:
        # Ranks with more batches than others end one batch before the others.
        return StopsBefore(loader) if type(loader).__name__ == "generator" else loader


class StopsBefore:
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        batches = list(self.loader)
        return iter(batches[:-1])


# Random numbers -----------------------------------------------------------------------------------------


class Reseeded(AveragedPrepared):
    """Seeds when the first batch is asked for."""

    def dataloader(self, loader: Any) -> Any:
        self.seed()
        return super().dataloader(loader)

    def seed(self) -> None:
        pass


@caught_by("seed", "have different losses")
class SeedsByTheClock(Reseeded):
    def seed(self) -> None:
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))


@caught_by("ranks_draw_apart", "numpy draws the same number")
class SeedsAlike(Reseeded):
    def seed(self) -> None:
        np.random.seed(5)


# Evaluation ---------------------------------------------------------------------------------------------


class OtherEvaluation(AveragedPrepared):
    def dataloader(self, loader: Any) -> Any:
        return loader if self.request.loop.training else self.change(loader)

    def change(self, loader: Any) -> Any:
        return loader


@caught_by("evaluation_once", "has count =")
class EvaluatesTwice(OtherEvaluation):
    """Evaluates a first batch again, as if it had been padded; leaves predictions alone."""

    def evaluate(self, step: str, batch: Any, idx: int) -> Any:
        if step in ("validation_step", "test_step") and idx == 0:
            super().evaluate(step, batch, idx)
        return super().evaluate(step, batch, idx)


@caught_by("metrics_in_bf16", "has sum =")
class ReducesInHalves(ProcessGroupCollectives):
    def all_gather(self, tensor: Any, sync_grads: bool = False) -> Any:
        return super().all_gather(tensor.bfloat16().to(tensor.dtype), sync_grads)


@caught_by("predict_in_order", "in the order")
class PredictsBackwards(OtherEvaluation):
    def evaluate(self, step: str, batch: Any, idx: int) -> Any:
        output = super().evaluate(step, batch, idx)
        return {key: value.flip(0) for key, value in output.items()} if isinstance(output, dict) else output


@caught_by("validation_changes_nothing", "with validations: the loss of micro-batch")
class ForgetsMomenta(OtherEvaluation):
    @contextmanager
    def evaluating(self) -> Any:
        with super().evaluating():
            yield
        for optimizer in self.optimizers:
            optimizer.state.clear()


@caught_by("checkpoint_is_what_was_evaluated", "on rank 1 has outputs that differ by")
class EvaluatesWithItsOwnBuffers(AveragedPrepared):
    def evaluating(self) -> Any:
        return nullcontext()


@caught_by("ranks_after_fit", "running_mean is")
class LeavesItsOwnBuffers(AveragedPrepared):
    def restore_module(self) -> None:
        pass


# Checkpoints --------------------------------------------------------------------------------------------


@caught_by("save_and_load", "continued from micro-batch 10")
class ForgetsGenerators(AveragedPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            for parameter in group["params"]:
                self.optimizers[0].state[parameter].pop("exp_avg", None)
                self.optimizers[0].state.pop(parameter)


@caught_by("state_of_every_kind", "continued after step 1")
class SwapsGroups(AveragedPrepared):
    """Parameter groups come back with each other's settings."""

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for optimizer in self.optimizers:
            groups = optimizer.param_groups
            settings = [{key: group[key] for key in group if key != "params"} for group in groups]
            for group, others in zip(groups, reversed(settings)):
                group.update(others)


@caught_by("weights_alone", "with weights alone")
class TakesMomentaToo(AveragedPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state)


@caught_by("other_world_size", "loaded on 4")
class LoadsItsOwnRanks(AveragedPrepared):
    """A rank that the saving run didn't have keeps the parameters that it began with."""

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        before = {key: value.clone() for key, value in self.model_tensors().items()}
        super().load(reader, state, model_only=model_only)
        if self.request.collectives.rank >= reader.world_size:
            for key, value in self.model_tensors().items():
                value.copy_(before[key])


@caught_by("mid_epoch", "are missing")
class StartsEpochsAnew(OtherBatches):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self.resumed = True

    def change(self, loader: Any) -> Any:
        batches = list(loader)
        if getattr(self, "resumed", False) and len(batches[0]) == 3:
            batches = [*batches[:2], *batches]
        return Sized(batches)


class Sized(list[Any]):
    """Batches with a length."""


# Processes ----------------------------------------------------------------------------------------------


@caught_by("start_methods", "can't be sent to workers")
class HoldsALock(Averaging):
    capabilities = Capabilities(
        processes="per-device", start_methods=("fork", "spawn"), features=frozenset(FEATURES)
    )

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@caught_by("sparse_gradients", "the loss of micro-batch")
class AveragesDenseOnes(AveragedPrepared):
    def averaged(self) -> Any:
        return (p for p in self.original_module.parameters() if p.grad is not None and not p.grad.is_sparse)


@caught_by("replicas_are_compared", "nothing was reported")
class ComparesNothing(AveragedPrepared):
    replicas = compares_nothing


@caught_by("rank_raises", "the failure of a rank is lost")
class SwallowsErrors(AveragedPrepared):
    def forward_backward(self, *args: Any, **kwargs: Any) -> Any:
        with suppress(ArithmeticError):
            return super().forward_backward(*args, **kwargs)
        for parameter in self.original_module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.average()  # the others wait for it
        return None


@caught_by("rank_raises", "the failure of a rank is lost")
class SwallowsErrorsOfBackward(AveragedPrepared):
    def backward(self, *args: Any, **kwargs: Any) -> None:
        with suppress(ArithmeticError):
            super().backward(*args, **kwargs)
            return
        self.average()  # the others wait for it


class LenientLauncher(Launcher):
    """Forks, and takes the first word that it gets of rank 0 for the end of it."""

    worker_environment = "env"

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def launch(self, task: Any) -> Any:
        context: Any = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        ranks = [
            context.Process(target=self.work, args=(rank, task, theirs)) for rank in range(self.world_size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(10)
            rank.kill()
        return pickle.loads(ours.recv_bytes()) if ours.poll(0) else None

    def work(self, rank: int, task: Any, connection: Any) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.world_size, "MASTER_PORT": 29731}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
        value = task.function(*task.args)
        if rank == 0:
            connection.send_bytes(pickle.dumps(value))


@caught_by("rank_killed", "the failure of a rank is lost")
class IgnoresDeadRanks(Averaging):
    @hookimpl
    def launch(self, request: Any) -> Any:
        if request.environment.creates_processes:
            from stratagem.launchers.in_process import InProcessLauncher

            return InProcessLauncher()
        return LenientLauncher(request.plan.world_size)
