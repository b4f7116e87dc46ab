"""`Fabric`: Stratagem's `Runtime` with Lightning's arguments, and with user-defined callbacks and loggers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.data.shared_sampler import distribute_sampler
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.module.step_module import STEP_NAMES
from stratagem_trainer.stage.seeding import seed_everything
from torch import nn

from stratagem import Runtime
from stratagem.errors import ConfigError, StratagemError
from stratagem.sdk.runs import assemble
from stratagem.sdk.tensors import map_tensors, to_device
from stratagem_lightning.fabric_module import FabricModule
from stratagem_lightning.in_fabric import InFabric
from stratagem_lightning.missing import in_tensors, no_member, number
from stratagem_lightning.precision import PRECISIONS, on_cpu
from stratagem_lightning.rank_zero import show_rank
from stratagem_lightning.registries import StrategyRegistry
from stratagem_lightning.run_parts import take_parts

if TYPE_CHECKING:
    from stratagem.runtime.session import Session


class Fabric(Runtime):
    """Trains in your own training loop: docs/coming-from-fabric.md.

    Args:
        accelerator: a name such as "cuda", or "auto".
        strategy: a name such as "ddp", or a strategy object.
        devices: number or indices of devices.
        num_nodes: number of machines.
        precision: a name such as "bf16-mixed".
        plugins: objects with hook implementations.
        callbacks: objects whose methods `call` calls.
        loggers: get the values given to `log`, on rank 0.
    """

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: Any = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        plugins: Any = None,
        callbacks: Any = None,
        loggers: Logger | Sequence[Logger] | None = None,
    ) -> None:
        others, parts = take_parts(plugins, {"precision": precision})
        precision = parts.pop("precision", precision)
        if isinstance(precision, (int, str, type(None))):
            precision = PRECISIONS.get(precision, precision)
        for name in ("requeue", "stop_signals"):  # only a trainer uses them
            parts.pop(name, None)
        super().__init__(
            strategy=StrategyRegistry.resolved(strategy),
            accelerator=accelerator,
            devices=devices,  # type: ignore[arg-type]  # Fabric's type, which has texts
            num_nodes=num_nodes,
            precision=precision,
            plugins=others,
            **parts,
        )
        self.config = on_cpu(self.config)
        self._is_begun = False
        self._callbacks = _listed(callbacks)
        self._loggers = _listed(loggers)
        for logger in self._loggers:
            if not isinstance(logger, Logger):
                raise ConfigError(
                    f"loggers has a {type(logger).__name__}: give objects that derive from Logger"
                )

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run `function(fabric, *args)` in every rank. Without a function, run the calling script in every rank.

        If the script's processes don't run yet, `stratagem run` starts them. Each runs the script from its first
        line, and this process exits with them.
        """
        if function is not None:
            called = _Called(self, function, kwargs)
            return function(self, *args, **kwargs) if self._is_begun else super().launch(called, *args)
        if self._is_begun:  # a single process whose run a property or setup() has started
            return None
        if not assemble(self.config).launcher().in_process:
            sys.exit(subprocess.call(self._command()))
        self._begin()
        return None

    def _begin(self) -> None:
        super().launch(quiet=True)
        self._is_begun = True
        self.run_in(self)

    def run_in(self, runtime: Runtime) -> None:
        """Use the live `runtime` of this process. A rank's function gets such a Fabric."""
        if runtime is not self and self._session is None:
            self._session, self.in_launching_process = runtime.session, runtime.in_launching_process
        show_rank(self.global_rank)
        for logger in self._loggers:
            self._open(logger)

    def flush_loggers(self) -> None:
        """Write all values logged so far, so that readers find them."""
        for logger in self._loggers:
            logger.flush()

    def close(self, failed: bool = False) -> None:
        """End the live run on this rank. Collective, unless this rank `failed`."""
        if self._session is not None:
            self.flush_loggers()
        super().close(failed)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_is_begun": False}

    @property
    def session(self) -> Session:
        """The live objects of the run. In a run of one process, they are created at the first access.

        Raises:
            StratagemError: the run has several processes, and launch() wasn't called.
        """
        if self._session is None and not self._is_begun:
            plan = assemble(self.config).plan
            if plan.world_size > 1:
                raise StratagemError(
                    f"this Fabric has {plan.world_size} processes and none runs: call launch() first"
                )
            self._begin()
        return super().session

    def _command(self) -> list[str]:
        script = getattr(sys.modules["__main__"], "__file__", None)
        config = self.config
        if script is None or not isinstance(config.strategy, str):
            raise ConfigError(
                "launch() without a function starts the script again, with a strategy by name: pass the function "
                "that each rank is to run"
            )
        flags = {
            "--strategy": config.strategy,
            "--accelerator": config.accelerator,
            "--devices": config.devices
            if isinstance(config.devices, (str, int))
            else ",".join(map(str, config.devices)),
            "--precision": config.precision,
        }
        words = [str(word) for pair in flags.items() for word in pair if pair[1] != "auto"]
        return [sys.executable, "-m", "stratagem", "run", *words, script, *sys.argv[1:]]

    def _open(self, logger: Logger) -> None:
        if self.is_global_zero:
            logger.open(self.config.run_dir or ".", {})
        else:
            logger.mute()

    # Modules, optimizers, tensors ---------------------------------------------------------------------

    def setup(self, module: nn.Module, *optimizers: Any, **how: Any) -> Any:
        """Prepare a module and its optimizers. Collective. The module's outputs are in torch's default dtype."""
        steps = STEP_NAMES if isinstance(module, InFabric) else ()
        methods = {"forward", *steps}
        made = super().setup(module, *optimizers, forward_methods=methods, **how)
        first, *stepped = made if isinstance(made, tuple) else (made,)
        wrapped = FabricModule(self.session.set_up_modules()[-1][0], methods, is_direct=first is module)
        if isinstance(module, InFabric):
            module.run_on(self, stepped)
        if self.config.precision != "32-true":
            wrapped.register_forward_hook(_in_default_dtype)
        return (wrapped, *stepped) if stepped else wrapped

    def setup_module(self, module: nn.Module, move_to_device: bool = True) -> Any:
        """Prepare a module that has no optimizers, or whose optimizers are set up later. Collective."""
        return self.setup(module)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:  # type: ignore[override]  # Fabric's parameters
        """Stack the values of all ranks along a new first dim; a single rank gets `data`, in tensors. Collective."""
        if group is not None:
            raise ConfigError("all_gather takes no group: it gathers from all ranks")
        return in_tensors(data, self.device) if self.world_size == 1 else super().all_gather(data, sync_grads)

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce the values of all ranks. Collective."""
        if group is not None:
            raise ConfigError("all_reduce takes no group: it reduces over all ranks")
        return super().all_reduce(data, reduce_op)

    def clip_gradients(
        self,
        module: nn.Module,
        optimizer: Any,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor | None:
        """Clip the gradients of `optimizer`, by `clip_val` or by norm. Collective."""
        if clip_val is not None and max_norm is not None:
            raise ConfigError("clip_gradients got clip_val and max_norm: give one of them")
        return super().clip_gradients(module, optimizer, clip_val, max_norm, norm_type, error_if_nonfinite)

    def to_device(self, obj: Any) -> Any:
        """Return a module or nested tensors, moved to the run's device."""
        return obj.to(self.device) if isinstance(obj, nn.Module) else to_device(obj, self.device)

    @property
    def node_rank(self) -> int:
        """Index of this machine in the run."""
        return self.collectives.node_rank

    @property
    def strategy(self) -> Any:
        """The run's strategy."""
        return self.session.run.strategy

    def setup_dataloaders(
        self, *dataloaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True
    ) -> Any:
        """Return loaders that split samples among the ranks, and move batches to the device. Collective."""
        if not move_to_device:
            raise ConfigError("setup_dataloaders(move_to_device=False) isn't here: batches are on the device")
        if use_distributed_sampler:
            ranks, seed = self.collectives.data, self.config.seed or 0
            dataloaders = tuple(distribute_sampler(each, ranks, seed) for each in dataloaders)
        return super().setup_dataloaders(*dataloaders, use_distributed_sampler=use_distributed_sampler)

    def backward(self, tensor: torch.Tensor, *args: Any, model: Any = None, **kwargs: Any) -> None:  # type: ignore[override]  # Fabric's parameters
        """Run backward through the strategy. Collective."""
        if args or kwargs:
            raise ConfigError(
                "backward takes a scalar and model alone: other arguments of torch's aren't passed on"
            )
        super().backward(tensor, model)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the value of rank `src`. Collective."""
        return super().broadcast(obj, src)

    def save(self, path: Any, state: Any = None, filter: Any = None) -> None:
        """Write the modules, optimizers and other values in `state`. Collective."""
        if filter is not None:
            raise ConfigError("save takes no filter: leave out of state what must not be saved")
        super().save(path, state)

    def load(self, path: Any, state: Any = None, strict: bool = True) -> dict[str, Any]:  # type: ignore[override]  # Fabric's parameters
        """Read what `save` wrote; returns the values that belong to no module or optimizer. Collective."""
        if not strict:
            raise ConfigError("load(strict=False) isn't here: a checkpoint fits the modules that are set up")
        return super().load(path, state)

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Create modules on the run's device inside of this context."""
        with torch.device(self.device):
            yield

    @contextmanager
    def init_tensor(self) -> Iterator[None]:
        """Create tensors on the run's device inside of this context."""
        with torch.device(self.device):
            yield

    @staticmethod
    def seed_everything(  # type: ignore[override]  # Fabric's parameters
        seed: int | None = None, workers: bool = False, verbose: bool = True
    ) -> int:
        """Seed all random number generators of this process, and return the seed."""
        return seed_everything(seed, workers, verbose)

    if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any attribute

        def __getattr__(self, name):
            # Called only for missing attributes.
            raise AttributeError(no_member("Fabric", name))

    # Callbacks and loggers ----------------------------------------------------------------------------

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each callback that has it.

        Raises:
            ConfigError: a callback has an attribute of that name that can't be called.
        """
        for callback in self._callbacks:
            method = getattr(callback, hook_name, None)
            if method is None:
                continue
            if not callable(method):
                raise ConfigError(
                    f"{type(callback).__qualname__}.{hook_name} can't be called: make it a method"
                )
            method(*args, **kwargs)

    @property
    def loggers(self) -> list[Logger]:
        """The loggers."""
        return list(self._loggers)

    @property
    def logger(self) -> Logger:
        """The first logger.

        Raises:
            ConfigError: there is none.
        """
        if not self._loggers:
            raise ConfigError("there is no logger: pass loggers to Fabric")
        first: Logger = self._loggers[0]
        return first

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Log a value on rank 0."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values on rank 0."""
        values = {name: number(name, value) for name, value in metrics.items()}
        for logger in self._loggers:
            logger.log_metrics(values, step)


class _Called:
    """A function with its keyword arguments, and the Fabric for each rank. Picklable if they are."""

    def __init__(self, fabric: Fabric, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self.fabric, self.function, self.kwargs = fabric, function, kwargs

    def __call__(self, runtime: Runtime, *args: Any) -> Any:
        self.fabric.run_in(runtime)
        try:
            return self.function(self.fabric, *args, **self.kwargs)
        finally:
            self.fabric.flush_loggers()


def _in_default_dtype(module: nn.Module, args: Any, output: Any) -> Any:
    dtype = torch.get_default_dtype()
    return map_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each, output)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
