"""`Session`: the live objects of a run in one worker, from the first collective to the last."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from stratagem.collectives.closures import mean_loss
from stratagem.errors import CheckpointError, CombinationError, ConfigError, DigestMismatchError, short
from stratagem.plugin.requests import (
    CheckpointRequest,
    LoopPlan,
    ModuleSteps,
    PrecisionRequest,
    ReduceRequest,
    SetupRequest,
)
from stratagem.runtime.optimizer_watch import OptimizerWatch
from stratagem.runtime.retrial import Retrial, as_set_up
from stratagem.strategies import ParameterLedger, ReplicaGuard
from stratagem.strategies.live import bind_session, unbind_session
from stratagem.strategies.loss_sum import LossSum
from stratagem.strategies.module_checks import needed_features, refuse_untrainable
from stratagem.strategies.replaced_parameters import refuse_use
from stratagem.strategies.sharded_modules import LeftSharded, forget_shards, leave_sharded, shards_for

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.checkpoint.base import CheckpointReader
    from stratagem.collectives.base import Collectives
    from stratagem.resolve.run import Run
    from stratagem.strategies.prepared import Prepared


class Session:
    """Opens device, process group, precision and checkpointer, in this order. Collective.

    If one of these steps raises, everything that was opened is closed in reverse order.

    Args:
        run: the run, assembled in this process.

    Raises:
        CombinationError: the collectives don't have this process's rank, or the run's world size.
        DigestMismatchError: another rank runs other components or versions.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._prepared: dict[Prepared, tuple[ParameterLedger, nn.Module]] = {}
        self._undo_layers: dict[Prepared, Callable[[], None]] = {}
        """Functions that undo the precision's changes of a module."""
        self._guards: dict[Prepared, ReplicaGuard] = {}
        self._retrials: dict[Prepared, list[Retrial]] = {}
        self.opened: Collectives | None = None
        """The collectives that the strategy opened. `collectives` also has the wrappers of extensions."""
        self.closing = ExitStack()
        """Callbacks of strategies, called at the end of the run after the collectives are closed."""
        with ExitStack() as opened:
            run.strategy.setup_worker(run)
            opened.callback(run.strategy.teardown)
            devices = run.process_devices()
            self.device = devices[0]
            run.accelerator.set_up(self.device)
            # A process group that is open already must stay open.
            if dist.is_available() and not dist.is_initialized():
                opened.callback(_close_group_left_open)
            bind_session(run.strategy, self)
            opened.callback(unbind_session, run.strategy, self)
            opened.callback(self.closing.close)
            self.collectives = run.hooks.reduce(ReduceRequest(run.environment, devices, run.accelerator))
            # If one of the next steps raises on this rank only, the others don't close with it: don't wait for them.
            opened.callback(self.collectives.close, failed=True)
            _check_ranks(run, self.collectives)
            _refuse_hidden_data(self.collectives, self.opened)
            self._watch = OptimizerWatch(self.collectives)
            _compare_ranks(run, self.collectives.gather_objects((run.digest(), run.versions())))
            self.precision = run.hooks.precision(
                PrecisionRequest(run.precision, run.of_kind("precision").value, self.device, run.accelerator)
            )
            self.checkpointer = run.hooks.checkpoint(
                CheckpointRequest(run.of_kind("checkpoint").value, self.collectives)
            )
            opened.pop_all()

    def prepare(
        self,
        module: nn.Module,
        original_module: nn.Module,
        make_optimizers: Callable[[], Sequence[Optimizer]],
        loop: LoopPlan,
        steps: ModuleSteps | None = None,
        run_dir: str | None = None,
    ) -> Prepared:
        """Prepare a module and its optimizers with the `setup` hook. Collective.

        Args:
            module: the module to wrap, as in `SetupRequest`.
            original_module: the user's module.
            make_optimizers: makes the optimizers; called once if `loop.training`.
            loop: what the loop will do.
            steps: the module's steps, if a trainer calls them.
            run_dir: the folder that ranks agreed on; None if the run keeps no files.

        Raises:
            CombinationError: an earlier run left the module sharded, and this run can't use its shards.
        """
        if not self.steps_alone:
            self._refuse_shared_parameters(original_module)
        left_shards = shards_for(original_module, self.run.strategy, self.collectives)
        if loop.training:
            refuse_untrainable(
                original_module, self.device, self.collectives.world_size, self.collectives.backend
            )
            self.run.require(needed_features(original_module))
        ledger = ParameterLedger(original_module, self.collectives.world_size)

        given: list[Optimizer] = []
        firsts: list[Optimizer] = []

        def make_over_todays() -> Sequence[Optimizer]:
            # Strategies call this when parameters are final. The user's function may decide about groups by
            # attributes of parameters, such as `no_decay`. So new parameters get the old ones' attributes before.
            ledger.carry_over()
            optimizers = make_optimizers()
            given[:] = optimizers
            if self._tries_optimizers:
                firsts[:] = map(as_set_up, optimizers)
                self._refuse_unshardable(optimizers)
            ledger.claim(optimizers)
            return optimizers

        request = SetupRequest(
            module=module,
            original_module=original_module,
            make_optimizers=make_over_todays,
            devices=self.run.process_devices(),
            collectives=self.collectives,
            precision=self.precision,
            loop=loop,
            steps=steps,
            config=replace(self.run.config, run_dir=run_dir),
            left_shards=left_shards,
        )
        undo_layers = self.precision.convert_layers(original_module)
        try:
            prepared = self.run.hooks.setup(request)
        except BaseException:
            undo_layers()
            raise
        self._undo_layers[prepared] = undo_layers
        forget_shards(original_module)
        ledger.carry_over()
        ledger.check(prepared.carries_hooks)
        replaced = ledger.replaced()
        # With a single rank and no work of the strategy around a step, a loop may step optimizers as it likes.
        is_direct = self.steps_alone and prepared.steps_directly
        if replaced or not is_direct:
            self._watch.add(prepared, given, replaced)
        refuse_use(parameter for each in replaced if (parameter := each()) is not None)
        self._prepared[prepared] = (ledger, module)
        # If the strategy can't call an optimizer's train() and eval(), refuse it now and not in the middle of
        # training.
        for index, each in enumerate(given[: len(prepared.optimizers)]):
            for method in (getattr(each, name, None) for name in ("train", "eval")):
                if isinstance(method, MethodType):
                    prepared.optimizer_method(index, method)
        # Even with one rank: an engine may step flat shards in one process, too.
        if not is_direct and self._tries_optimizers:
            self._retrials[prepared] = [
                Retrial(own, tried, first, partial(self._try_again, prepared, index))
                for index, (own, tried, first) in enumerate(zip(prepared.optimizers, given, firsts))
            ]
        return prepared

    def set_up_modules(self) -> list[tuple[Prepared, nn.Module]]:
        """Return what was prepared, each with the module that the strategy got to wrap."""
        return [(prepared, module) for prepared, (_, module) in self._prepared.items()]

    def _refuse_shared_parameters(self, module: nn.Module) -> None:
        """Refuse a module that shares parameters with an earlier one: both would reduce their gradients."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for prepared in self._prepared:
            other = prepared.original_module
            for parameter in other.parameters():
                if id(parameter) in names:
                    raise ConfigError(
                        f"{names[id(parameter)]!r} of {type(module).__name__} is a parameter of "
                        f"{type(other).__name__} too, which was set up before: set up one module that has both, "
                        "and name the methods that your loop calls by forward_methods=[...]"
                    )

    @property
    def _tries_optimizers(self) -> bool:
        """Whether the strategy may step shards, so that optimizers are tried on them."""
        return "whole_optimizer" not in self.run.capabilities.features

    def _refuse_unshardable(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse optimizers whose results would differ on this strategy's shards."""
        for optimizer in optimizers:
            with self._watch.strategy_steps():  # a trial steps copies, which the watch doesn't know
                reason = self.run.strategy.refuse_optimizer(optimizer, self.collectives.world_size)
            if reason is not None:
                raise self.run.refusal(
                    "whole_optimizer", f"{type(optimizer).__name__} on shards, for {reason}"
                )

    def _try_again(self, prepared: Prepared, index: int, optimizer: Optimizer) -> None:
        """Try an optimizer whose settings were switched. Refuse it, or pass it to `optimizer_tried_again`."""
        if prepared.steps_all_at_once(index):
            return
        self._refuse_unshardable([optimizer])
        prepared.optimizer_tried_again(index, optimizer)

    def open_checkpoint(self, path: str, verify: bool = True) -> CheckpointReader:
        """Open a checkpoint that this run's strategy can load. Collective.

        Raises:
            CheckpointError: as `Checkpointer.open` and `refuse_other_ranks`.
        """
        reader = self.checkpointer.open(path, verify)
        self.refuse_other_ranks(reader)
        return reader

    def refuse_other_ranks(self, reader: CheckpointReader) -> None:
        """Refuse a checkpoint that this run's strategy can't load completely. Not collective.

        Raises:
            CheckpointError: another number of ranks wrote it, and the strategy doesn't declare "resharding".
        """
        if (
            reader.world_size != self.collectives.world_size
            and "resharding" not in self.run.capabilities.features
        ):
            raise CheckpointError(
                f"{reader.path} was written by {reader.world_size} ranks, and strategy "
                f"{self.run.strategy_name!r} only loads it on as many, not on {self.collectives.world_size}: start "
                f"{reader.world_size}, or choose a strategy that loads it at any world size"
            )

    def guard(self, prepared: Prepared) -> ReplicaGuard:
        """Return the guard that compares copies of `prepared` during training."""
        if prepared not in self._guards:
            every = self.run.config.check_replicas_every if prepared.has_copies else 0
            self._guards[prepared] = ReplicaGuard(prepared, self.collectives, every)
        return self._guards[prepared]

    @property
    def steps_alone(self) -> bool:
        """Whether the run has only this rank, so that a step needs no comparison and no reduction."""
        return self.collectives.world_size == 1

    def step(
        self, prepared: Prepared, index: int, closure: Callable[[], Any] | None = None
    ) -> tuple[bool, Any]:
        """Step optimizer `index` of `prepared` with gradients that are complete. Collective.

        Args:
            prepared: returned by `prepare`.
            index: of the optimizer.
            closure: evaluates the loss and runs backward. The optimizer gets the mean over ranks of what it returns,
                or the weighted mean if losses are sums with weights.

        Returns:
            Whether the step was applied, and the loss of the closure's first evaluation.

        Raises:
            GradientError: a gradient isn't complete, and can't be completed.
            ReplicaError: gradients differ between ranks.
        """
        guard = self.guard(prepared)
        if closure is None:
            prepared.complete_gradients(index)
            guard.before_step(index)
            return self.step_prepared(prepared, index), None
        losses: list[Any] = []

        def evaluate() -> Any:
            loss = closure()
            loss = mean_loss(loss.loss if isinstance(loss, LossSum) else loss, self.collectives.data)
            if prepared.loss_weights.is_used:
                loss = prepared.loss_weights.mean(loss, index)
            prepared.complete_gradients(index)
            # L-BFGS evaluates many times in a step; the guard compares once per step.
            if not losses:
                guard.before_step(index)
            losses.append(loss)
            return loss

        applied = self.step_prepared(prepared, index, evaluate)
        return applied, losses[0] if losses else None

    def step_prepared(self, prepared: Prepared, index: int, closure: Callable[[], Any] | None = None) -> bool:
        """Call `Prepared.step`, for a loop that completes gradients itself; return whether it was applied."""
        retrials = self._retrials.get(prepared, ())
        # An optimizer that an engine makes itself is not tried.
        retrial = retrials[index] if index < len(retrials) else None
        if retrial is not None:
            retrial.before_step()
        with self._watch.strategy_steps():
            applied = prepared.step(index, closure)
        if retrial is not None:
            retrial.after_step()
        prepared.loss_weights.note_step(index)
        return applied

    def close(self, failed: bool = False) -> None:
        """Release what was prepared, leave the process group, undo the environment. Collective.

        Args:
            failed: this rank is ending with an exception: don't wait for the others.
        """
        # The last callback runs first, so that modules are released while the process group is open. All callbacks
        # run, even after one that raises.
        with ExitStack() as rest:
            rest.callback(self.run.strategy.teardown)
            rest.callback(unbind_session, self.run.strategy, self)
            rest.callback(self.closing.close)
            rest.callback(self.collectives.close, failed)
            rest.callback(self.checkpointer.close, failed)
            rest.callback(self._release, failed)
            if not failed:
                for prepared in self._prepared:
                    self.guard(prepared).compare_last_steps("at the end of the run")

    def _release(self, failed: bool) -> None:
        self._watch.close()
        self._guards.clear()
        self._retrials.clear()
        while self._prepared:
            prepared, (ledger, _) = self._prepared.popitem()
            try:
                if not failed:
                    prepared.restore_module()
            finally:
                prepared.release()
                self._undo_layers.pop(prepared)()
            ledger.carry_over()
            if prepared.leaves_module_sharded:
                world_size, rank = self.collectives.world_size, self.collectives.rank
                left = LeftSharded(self.run.strategy_name, world_size, rank, prepared.left_shards)
                leave_sharded(prepared.original_module, left)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on every device of this process.

    Raises:
        ConfigError: the seed isn't a whole number from 0 to 2**64 - 1.
    """
    import numpy as np

    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ConfigError(f"seed={short(seed)} must be a whole number from 0 to {2**64 - 1}")

    random.seed(seed)
    # np.random.seed takes 32 bits at most.
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _close_group_left_open() -> None:
    """Close a process group that was left open, such as by a wrapper that raised after opening it."""
    if dist.is_initialized():
        gc.collect()  # as in ProcessGroupCollectives.close
        dist.destroy_process_group()


def _check_ranks(run: Run, collectives: Collectives) -> None:
    expected = (run.environment.global_rank, run.environment.world_size)
    if (collectives.rank, collectives.world_size) == expected:
        return
    strategy = type(run.strategy).__name__
    raise CombinationError(
        f"strategy {run.strategy_name!r} has {type(collectives).__name__} of rank {collectives.rank} of "
        f"{collectives.world_size} in the process that is rank {expected[0]} of {expected[1]}: open the process "
        f"group of all ranks in {strategy}.open_collectives, as ProcessGroupStrategy does, and keep rank and "
        "world_size in wrappers of the hook 'reduce'"
    )


def _refuse_hidden_data(collectives: Collectives, opened: Collectives | None) -> None:
    """Refuse a wrapper with another `data`: ranks that must read the same batches would read different ones."""
    if opened is None:
        return
    kept, wanted = collectives.data, opened.data
    if (kept.rank, kept.world_size) != (wanted.rank, wanted.world_size):
        raise CombinationError(
            f"{type(collectives).__name__} has other ranks in `data`, part {kept.rank} of "
            f"{kept.world_size}, where {type(opened).__name__} that it wraps reads part {wanted.rank} of "
            f"{wanted.world_size}: derive it from CollectivesWrapper, or return the wrapped one's `data`"
        )


def _compare_ranks(run: Run, gathered: list[tuple[str, dict[str, str]]]) -> None:
    first_digest, first = gathered[0]
    for rank, (digest, versions) in enumerate(gathered):
        if digest == first_digest:
            continue
        differing = sorted(key for key in {*first, *versions} if first.get(key) != versions.get(key))
        raise DigestMismatchError(
            f"rank {rank} doesn't run what rank 0 runs: "
            + "; ".join(
                f"{key} is {versions.get(key)} there and {first.get(key)} on rank 0" for key in differing
            )
            + "; install the same versions on every node"
        )
