"""`Runtime`: runs your own training loop under any strategy. The trainer is built on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Concatenate, Literal, ParamSpec, TypeVar, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from stratagem.config import Devices, path_text
from stratagem.data.batches import moved
from stratagem.errors import ConfigError, NonFiniteError, StratagemError, UsageError, short
from stratagem.launchers.base import Task
from stratagem.plugin.requests import Clipping, LoopPlan
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.accumulation import Accumulation
from stratagem.runtime.checkpoint import fitting, load_session, restore_state, save_session, states_of
from stratagem.runtime.loaders import EpochLoader, EvalLoader, distribute_loader
from stratagem.runtime.loop import (
    check_autocast,
    named,
    optimizers_for,
    prepared_of,
    prepared_of_optimizer,
    wrap,
)
from stratagem.runtime.methods import MethodModule
from stratagem.runtime.plan import announce, announce_by_value
from stratagem.runtime.ranks import Ranks
from stratagem.runtime.script_flags import run_config
from stratagem.runtime.session import Session, seed_everything
from stratagem.strategies.loss_weights import accumulating, weighted_backward
from stratagem.strategies.prepared import Prepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.accelerators.base import Accelerator
    from stratagem.config import RunOptions
    from stratagem.precision.base import Precision
    from stratagem.strategies.base import Strategy

ArgsT = ParamSpec("ArgsT")
BatchT = TypeVar("BatchT")
ModuleT = TypeVar("ModuleT", bound=nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
OtherOptimizerT = TypeVar("OtherOptimizerT", bound=Optimizer)
ResultT = TypeVar("ResultT")


class Runtime(Ranks):
    """The configuration of a run and, while `launch` runs, access to the live run.

    Args:
        strategy: a name such as "ddp", or a strategy object.
        accelerator: a name such as "cuda", or "auto".
        devices: how many, or which: docs/guides/devices.md.
        num_nodes: number of machines, or a minimum and a maximum such as "1:4".
        precision: a name such as "bf16-mixed".
        plugins: objects with hook implementations, or names of installed extensions.
        seed: seed of all random number generators on every rank; None seeds nothing.
        run_dir: folder for the run's files; None for no folder.
        further: other fields of `RunConfig`, by name.

    Flags of `stratagem run` set arguments that have their default here. A flag that contradicts an argument is an
    error.
    """

    def __init__(
        self,
        strategy: str | Strategy = "auto",
        accelerator: str | Accelerator | None = "auto",
        devices: Devices = "auto",
        num_nodes: int | str = 1,
        precision: str | int | Precision = "32-true",
        plugins: object = (),
        seed: int | None = None,
        run_dir: str | None = None,
        **further: Unpack[RunOptions],
    ) -> None:
        self.config = run_config(
            "Runtime",
            plugins,
            strategy=strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            seed=seed,
            run_dir=run_dir,
            **further,
        )
        self.in_launching_process = True
        """Whether this process called `launch`, so that the caller sees changes of its objects."""
        self._session: Session | None = None
        self._prepared: list[Prepared] = []
        self._handles: list[RemovableHandle] = []
        self._accumulation = Accumulation()

    @overload
    def launch(self, function: None = None, *, quiet: bool = False) -> None: ...

    @overload
    def launch(
        self,
        function: Callable[Concatenate[Runtime, ArgsT], ResultT],
        *args: ArgsT.args,
        **kwargs: ArgsT.kwargs,
    ) -> ResultT: ...

    @overload
    def launch(self, function: Callable[..., ResultT], *args: Any, quiet: bool, **kwargs: Any) -> ResultT: ...

    def launch(  # type: ignore[misc]  # a function's own keyword can't be called quiet
        self, function: Callable[..., Any] | None = None, *args: Any, quiet: bool = False, **kwargs: Any
    ) -> Any:
        """Run `function(runtime, *args, **kwargs)` in every rank, and return what rank 0 returned.

        Without a function, every rank runs the calling script itself: start it with `stratagem run`, torchrun or
        another launcher, or on a single process.

        Args:
            function: must be picklable, unless the run has one process.
            args: arguments that the function gets after the runtime.
            quiet: True prints no plan. It isn't passed to the function.
            kwargs: keywords that the function gets.

        Raises:
            UsageError: this machine can't run with these settings.
            WorkerError: a rank failed.
        """
        if function is not None and not callable(function):
            raise ConfigError(
                f"launch got function={short(function)}: give a function that takes the runtime"
            )
        if function is None and (args or kwargs):
            raise ConfigError("launch got arguments and no function: give the function that takes them, too")
        run = assemble(self.config)
        is_first_node = not (run.plan.node_rank or run.environment.node_rank)
        if not quiet and run.environment.global_rank == 0 and is_first_node:
            announce(run)
        from stratagem.runtime.launching import attach, launch

        if function is None:
            return attach(run, self)
        called = partial(function, **kwargs) if kwargs else function
        return launch(run, Task(called, args, notice=None if quiet else announce_by_value), self)

    def open(self, run: Run, *, in_launching_process: bool) -> None:
        """Start `run` in this rank, as `launch` does. Collective.

        Raises:
            UsageError: this runtime is live already.
        """
        if self._session is not None:
            raise UsageError("this runtime is live already: make another Runtime for another run")
        if run.config.seed is not None:
            seed_everything(run.config.seed)
        self._session, self.in_launching_process = Session(run), in_launching_process

    def close(self, failed: bool = False) -> None:
        """End the live run in this rank. Collective, unless this rank `failed`."""
        session, self._session = self._session, None
        self._prepared.clear()
        accumulation, self._accumulation = self._accumulation, Accumulation()
        if accumulation.is_open and not failed:
            accumulation.warn_of_open_window()
        while self._handles:
            self._handles.pop().remove()
        if session is not None:
            session.close(failed)

    @property
    def session(self) -> Session:
        """The live objects of the run.

        Raises:
            StratagemError: `launch` hasn't been called, or has ended.
        """
        if self._session is None:
            raise StratagemError(
                "the runtime isn't live: call launch() first, or work in the launched function"
            )
        return self._session

    @staticmethod
    def seed_everything(seed: int) -> None:
        """Seed Python's, NumPy's and torch's generators, on every device of this process."""
        seed_everything(seed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_prepared": []}

    @overload
    def setup(
        self,
        module: ModuleT,
        *,
        accumulate: int = 1,
        clipping: Clipping | None = None,
        forward_methods: Collection[str] = (),
    ) -> ModuleT: ...

    @overload
    def setup(
        self,
        module: ModuleT,
        optimizer: OptimizerT | Callable[[ModuleT], OptimizerT],
        /,
        *,
        accumulate: int = 1,
        clipping: Clipping | None = None,
        forward_methods: Collection[str] = (),
    ) -> tuple[ModuleT, OptimizerT]: ...

    @overload
    def setup(
        self,
        module: ModuleT,
        optimizer: OptimizerT | Callable[[ModuleT], OptimizerT],
        other: OtherOptimizerT | Callable[[ModuleT], OtherOptimizerT],
        /,
        *,
        accumulate: int = 1,
        clipping: Clipping | None = None,
        forward_methods: Collection[str] = (),
    ) -> tuple[ModuleT, OptimizerT, OtherOptimizerT]: ...

    @overload
    def setup(
        self,
        module: ModuleT,
        optimizer: Optimizer | Callable[[ModuleT], Optimizer],
        other: Optimizer | Callable[[ModuleT], Optimizer],
        third: Optimizer | Callable[[ModuleT], Optimizer],
        /,
        *optimizers: Optimizer | Callable[[ModuleT], Optimizer],
        accumulate: int = 1,
        clipping: Clipping | None = None,
        forward_methods: Collection[str] = (),
    ) -> tuple[ModuleT, Unpack[tuple[Optimizer, ...]]]: ...

    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer | Callable[[Any], Optimizer],
        accumulate: int = 1,
        clipping: Clipping | None = None,
        forward_methods: Collection[str] = (),
    ) -> Any:
        """Prepare a module and its optimizers. Collective.

        Args:
            module: the module. Call the returned one instead of it.
            optimizers: over the module's parameters, or functions that make one from the module.
            accumulate: micro-batches per optimizer step: call `accumulate` or `no_sync` around them.
            clipping: the limits that you will pass to `clip`, for engines that must know them beforehand.
            forward_methods: names of methods other than `forward` that call layers, and that your loop calls.

        Returns:
            The module alone, or a tuple of the module and the optimizers. If the strategy has to act on each call,
            they are wrappers with the attributes and methods of your objects. Type checkers see your classes.
        """
        if type(accumulate) is not int or accumulate < 1:
            raise ConfigError(
                f"setup got accumulate={short(accumulate)}: give the number of micro-batches per step, from 1"
            )
        given = MethodModule(module, forward_methods) if forward_methods else module
        prepared = self.session.prepare(
            given,
            module,
            optimizers_for(module, optimizers),
            LoopPlan(bool(optimizers), accumulate=accumulate, clipping=clipping or Clipping()),
            run_dir=self.config.run_dir,
        )
        self._prepared.append(prepared)
        handle = check_autocast(prepared)
        if handle is not None:
            self._handles.append(handle)
        if optimizers:
            self._accumulation.sizes.add(accumulate)
        accumulation = self._accumulation if accumulate > 1 else None
        wrapped, stepped = wrap(prepared, given, self.session, forward_methods, accumulation)
        return (wrapped, *stepped) if optimizers else wrapped

    @overload
    def dataloader(
        self,
        loader: Iterable[BatchT],
        *,
        evaluation: Literal[False] = False,
        use_distributed_sampler: bool = True,
    ) -> EpochLoader[BatchT]: ...

    @overload
    def dataloader(
        self, loader: Iterable[BatchT], *, evaluation: Literal[True], use_distributed_sampler: bool = True
    ) -> EvalLoader[BatchT]: ...

    def dataloader(
        self, loader: Iterable[Any], *, evaluation: bool = False, use_distributed_sampler: bool = True
    ) -> EpochLoader[Any] | EvalLoader[Any]:
        """Divide `loader` among ranks, and move its batches to the device: docs/guides/data.md. Collective.

        Args:
            loader: a DataLoader, or any iterable of batches.
            evaluation: True: each sample is read once over all ranks, in the order of the data. False: all ranks have
                the same number of batches, in the loader's order.
            use_distributed_sampler: whether to divide samples among ranks; False leaves the loader as it is.

        Raises:
            DataError: several loaders were given, or one without a batch.
        """
        mover = self._prepared[-1].dataloader if self._prepared else partial(moved, device=self.device)
        return distribute_loader(
            self.session, loader, mover, evaluation=evaluation, share=use_distributed_sampler
        )

    @overload
    def setup_dataloaders(
        self, loader: Iterable[BatchT], /, *, use_distributed_sampler: bool = True
    ) -> EpochLoader[BatchT]: ...

    @overload
    def setup_dataloaders(
        self, *loaders: Iterable[BatchT], use_distributed_sampler: bool = True
    ) -> list[EpochLoader[BatchT]]: ...

    def setup_dataloaders(self, *loaders: Iterable[Any], use_distributed_sampler: bool = True) -> Any:
        """Return `dataloader(loader)` of each loader, for training: one, or a list of several. Collective."""
        made = [self.dataloader(each, use_distributed_sampler=use_distributed_sampler) for each in loaders]
        return made[0] if len(made) == 1 else made

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context with the run's precision, for operations outside of prepared modules."""
        return self.session.precision.autocast() or nullcontext()

    def backward(
        self,
        loss: torch.Tensor,
        module: nn.Module | None = None,
        *,
        weight: torch.Tensor | float | None = None,
    ) -> None:
        """Run backward through the strategy; collective.

        Args:
            loss: a scalar.
            module: the module that `setup` returned. Only needed if several modules were set up, and the strategy
                replaces autograd's backward.
            weight: for a loss that is a sum: how many losses it sums, such as this rank's number of tokens; 0 if it
                has none. A number, or a tensor with one element. The sum of the step's losses over all ranks and
                micro-batches is divided by the sum of their weights. Once a loss has a weight, give every loss one,
                on every rank: docs/guides/losses.md.

        Raises:
            CombinationError: the strategy can't divide by weights.
            DataError: the weight isn't a number of at least 0.
            GradientError: other losses have weights and this one doesn't, or there are gradients of losses without
                weights.
        """
        if not isinstance(loss, torch.Tensor):
            raise ConfigError(
                f"backward got loss={short(loss)}: give the tensor that the module's output leads to"
            )
        prepared = self._prepared
        # These only scale the loss, and autograd reaches all modules from there: one backward is enough for all.
        if module is None and len(prepared) > 1 and all(each.backwards_directly for each in prepared):
            prepared = prepared[:1]
        try:
            found = prepared_of(prepared, module)
            divisor = self._accumulation.begin_backward()
            if weight is not None or found.loss_weights.is_used:
                weighted_backward(found, self._prepared, loss, weight)
            else:
                found.backward(loss if divisor == 1 else loss / divisor)
        except Exception:
            for each in self._prepared:
                each.abandon_backward()
            raise

    def no_sync(self, module: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Return a context for forward and backward of a micro-batch that isn't the last of its optimizer step."""
        prepared = prepared_of(self._prepared, module)
        return _both(prepared.no_sync(), accumulating(prepared.loss_weights))

    def accumulate(self, loader: EpochLoader[Any] | None = None) -> AbstractContextManager[None]:
        """Return a context for one micro-batch: forward, backward, clip and step.

        A window is as many micro-batches as the `accumulate` that `setup` got. `backward` divides losses without a
        weight by that number. Until the window's last micro-batch, gradients aren't reduced, and `clip` and the
        optimizers' `step` and `zero_grad` do nothing.

        Args:
            loader: the loader that `dataloader` returned. Its last batch ends a window, whose losses are divided by
                the number of micro-batches that it has. Without a loader, or if its length isn't known, windows
                continue in the next epoch.

        Raises:
            ConfigError: no optimizer was set up, or `setup` got different `accumulate` for several modules.
            GradientError: something other than `backward` changed gradients.
        """
        return self._accumulation.micro_batch(self._prepared, loader)

    @property
    def sync_gradients(self) -> bool:
        """Whether a step takes effect now: outside of `accumulate`, and in the last micro-batch of a window."""
        return not self._accumulation.holds_back

    def no_backward_sync(
        self, module: nn.Module | None = None, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """Return `no_sync(module)` if `enabled`, else a context that does nothing."""
        return self.no_sync(module) if enabled else nullcontext()

    def clip(
        self,
        optimizer: Optimizer,
        *,
        max_norm: float | None = None,
        max_value: float | None = None,
        norm_type: float = 2.0,
    ) -> torch.Tensor | None:
        """Limit the gradients of `optimizer` before its step; collective.

        Returns:
            The total norm before clipping, when `max_norm` is given; None before the last micro-batch of a window of
            `accumulate`.
        """
        if max_norm is None and max_value is None:
            raise ConfigError("clip got no limit: give max_norm or max_value")
        prepared, index = prepared_of_optimizer(self._prepared, optimizer)
        if self._accumulation.holds_back:
            return None
        self._accumulation.check()
        prepared.complete_gradients(index)
        return prepared.clip(index, Clipping(max_norm, max_value, norm_type))

    def average_gradients(self, optimizer: Optimizer) -> None:
        """Average the gradients of `optimizer` over ranks, before you step with gradients of your own; collective.

        `backward` averages its gradients already. Gradients that your loop assigns, such as those of
        `torch.autograd.grad`, are this rank's own, and only you know whether you want their average over ranks.
        """
        prepared, index = prepared_of_optimizer(self._prepared, optimizer)
        prepared.average_gradients(index)

    def clip_gradients(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor | None:
        """Clip gradients like `clip`, by `clip_val` or by norm; collective. `module` is the optimizer's.

        Raises:
            NonFiniteError: the norm isn't finite. This check waits for the device.
        """
        norm = self.clip(optimizer, max_norm=max_norm, max_value=clip_val, norm_type=norm_type)
        if error_if_nonfinite and norm is not None and not bool(norm.isfinite()):
            raise NonFiniteError(
                f"the gradients' norm is {float(norm)}: skip the batch, or pass error_if_nonfinite=False"
            )
        return norm

    def save(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> None:
        """Write modules, optimizers and random number generators to a checkpoint. Collective.

        Args:
            path: a folder to be made or replaced, or an fsspec URL.
            state: what else to save: JSON-able values, small tensors, and objects with a `state_dict`. Rank 0's is
                written. Modules and optimizers that `setup` returned are saved anyway. If there are several modules,
                the checkpoint names each by its key in `state`.

        Raises:
            UsageError: a window of `accumulate` has begun, and checkpoints don't have its gradients.
        """
        if self._accumulation.is_open:
            raise self._accumulation.unsaved(path)
        parts = named(self._prepared, state or {})
        save_session(self.session, parts, path_text("path", path), states_of(self._prepared, state or {}))

    def load(
        self, path: str | os.PathLike[str], state: dict[str, Any] | None = None, *, verify: bool = True
    ) -> dict[str, Any]:
        """Load a checkpoint of `save`, at any world size and under any strategy. Collective.

        Args:
            path: the path that `save` got.
            state: restored from the values saved under the same keys: objects by `load_state_dict`, others replaced.
            verify: whether to compare checksums.

        Returns:
            The `state` that `save` got, without the values that were restored into `state`.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged (unless `verify` is False), or another program
                wrote it.
        """
        if not self._prepared:
            raise ConfigError(
                "load restores what setup() returned, and nothing was set up: call setup() first, or "
                "saved_state(path), which returns the state alone"
            )
        parts = named(self._prepared, state or {})
        saved = load_session(self.session, parts, path_text("path", path), verify)
        return restore_state(self._prepared, saved, state or {}, os.fspath(path))

    def saved_state(self, path: str | os.PathLike[str], *, verify: bool = True) -> dict[str, Any]:
        """Return the `state` that `save` got, such as a model's arguments. Works before `setup`. Collective.

        In place of objects it has their `state_dict()`. Nothing is restored, not even random number generators.

        Args:
            path: the path that `save` got.
            verify: whether to compare checksums.

        Raises:
            CheckpointError: there is none, or it is damaged (unless `verify` is False).
        """
        reader = self.session.checkpointer.open(path_text("path", path), verify)
        with fitting(reader):
            return dict(reader.state.get("user", {}))


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield
