"""`Runtime`: your own training loop under any strategy.

The trainer is built on it. A script that is to run on any number of processes looks like this::

    def main(runtime):
        model = Net()
        model, optimizer = runtime.setup(model, torch.optim.AdamW(model.parameters()))
        for batch in runtime.dataloader(loader):
            loss = loss_of(model, batch)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        Runtime(strategy="ddp", devices=2).launch(main)
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Callable

from torch import nn
from torch.optim import Optimizer

from stratagem.config import Devices, RunConfig
from stratagem.errors import ConfigError, StratagemError, UsageError
from stratagem.launchers.base import Task
from stratagem.plugin.requests import Clipping
from stratagem.resolve.plan import announce, announce_by_value
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.checkpoint import load_session, save_session
from stratagem.runtime.loaders import LoaderView
from stratagem.runtime.loop import PreparedModule, PreparedOptimizer, optimizers_for
from stratagem.runtime.script_flags import with_flags
from stratagem.runtime.session import Session, seed_everything
from stratagem.strategies.prepared import Prepared

if TYPE_CHECKING:
    import torch


class Runtime(LoaderView):
    """Selection of a run, and, between the start and the end of `launch`, its live facade.

    Args:
        strategy: a name as "ddp", or a strategy object.
        accelerator: a name as "cuda", or "auto".
        devices: how many, or which: docs/guides/devices.md.
        num_nodes: machines taking part, or the minimum and the maximum as "1:4".
        precision: a name as "bf16-mixed".
        plugins: objects with hook implementations, or names of installed extensions.
        seed: for every generator on every rank; None seeds nothing.
        further: other fields of `RunConfig`, by name.

    Flags given to `stratagem run` fill whatever is left at its default; one that contradicts an
    argument here is an error.
    """

    def __init__(
        self,
        strategy: Any = "auto",
        accelerator: str = "auto",
        devices: Devices = "auto",
        num_nodes: int | str = 1,
        precision: Any = "32-true",
        plugins: Sequence[Any] = (),
        seed: int | None = None,
        **further: Any,
    ) -> None:
        names = [field.name for field in fields(RunConfig)]
        unknown = sorted(set(further) - set(names))
        if unknown:
            raise ConfigError(
                f"Runtime has no argument {unknown[0]!r}; it has {', '.join(names)}, and plugins"
            )
        self.config = with_flags(
            RunConfig(
                strategy=strategy,
                accelerator=accelerator,
                devices=devices,
                num_nodes=num_nodes,
                precision=precision,
                extensions=tuple(plugins),
                seed=seed,
                **further,
            )
        )
        self.in_launching_process = True  # what happens to objects here is seen by the caller of `launch`
        self._session: Session | None = None
        self._prepared: list[Prepared] = []

    # Start and end --------------------------------------------------------------------------------

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, quiet: bool = False) -> Any:
        """Run `function(runtime, *args)` in every rank, and return what rank 0 returned.

        Without a function, the calling script itself is what every rank runs: start it with
        `stratagem run`, torchrun or another launcher, or on a single process.

        Raises:
            UsageError: the run isn't possible as asked, on this machine.
            WorkerError: a rank failed.
        """
        run = assemble(self.config)
        if not quiet and run.environment.global_rank == 0:
            announce(run)
        if function is not None:
            return launch(run, Task(function, args, notice=None if quiet else announce_by_value))
        if not run.launcher().in_process:
            raise UsageError(
                f"launch() without a function needs {run.plan.world_size} running processes: start the script "
                "with `stratagem run`, or pass the function that each rank is to run"
            )
        self._open(run)
        # Python keeps the error that ends a script: nobody needs to wait for a rank that has one.
        atexit.register(lambda: self._close(failed=getattr(sys, "last_value", None) is not None))
        return None

    def _open(self, run: Run) -> None:
        if self._session is not None:
            raise UsageError("this runtime is live already: make another Runtime for another run")
        if run.config.seed is not None:
            seed_everything(run.config.seed)
        self._session = Session(run)

    def _close(self, failed: bool = False) -> None:
        session, self._session = self._session, None
        self._prepared.clear()
        if session is not None:
            session.close(failed)

    @property
    def session(self) -> Session:
        """The live objects of the run.

        Raises:
            StratagemError: there are none before `launch`, nor after it.
        """
        if self._session is None:
            raise StratagemError(
                "the runtime isn't live: call launch() first, or work in the launched function"
            )
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_prepared": []}

    # Modules, optimizers, data ----------------------------------------------------------------------

    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer | Callable[[nn.Module], Optimizer],
        accumulate: int = 1,
        clipping: Clipping | None = None,
    ) -> Any:
        """Prepare a module and its optimizers. Collective.

        Args:
            module: call the returned one instead of it.
            optimizers: over the module's parameters, or functions that make one from the module.
            accumulate: micro-batches per optimizer step.
            clipping: what is going to be passed to `clip`, for engines that must know it beforehand.

        Returns:
            The module alone, or a tuple of the module and the optimizers.
        """
        prepared = self.session.prepare(
            module,
            module,
            optimizers_for(module, optimizers),
            training=bool(optimizers),
            accumulate=accumulate,
            clipping=clipping or Clipping(),
            run_dir=self.config.run_dir,
        )
        self._prepared.append(prepared)
        is_module = prepared.module is module and prepared.forwards_directly
        wrapped = module if is_module else PreparedModule(prepared)
        guard = self.session.guard(prepared)
        data_ranks = self.session.collectives.data
        steps_directly = prepared.steps_directly and not guard.is_active and data_ranks.world_size == 1
        stepped = [
            optimizer if steps_directly else PreparedOptimizer(prepared, index, guard, data_ranks)
            for index, optimizer in enumerate(prepared.optimizers)
        ]
        return (wrapped, *stepped) if optimizers else wrapped

    # Per step -------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, module: nn.Module | None = None) -> None:
        """Run backward through the strategy; collective.

        Args:
            loss: a scalar.
            module: what `setup` returned; only needed where several modules were set up.
        """
        self._of(module).backward(loss)

    def no_sync(self, module: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch that isn't the last of its optimizer step."""
        return self._of(module).no_sync()

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
            The total norm before clipping, when `max_norm` is given.
        """
        clipping = Clipping(max_norm, max_value, norm_type)
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer.prepared.clip(optimizer.index, clipping)
        for prepared in self._prepared:
            for index, candidate in enumerate(prepared.optimizers):
                if candidate is optimizer:
                    return prepared.clip(index, clipping)
        raise ConfigError("clip got an optimizer that wasn't set up: pass one that setup() returned")

    def _of(self, module: nn.Module | None) -> Prepared:
        if module is None and len(self._prepared) == 1:
            return self._prepared[0]
        for prepared in self._prepared:
            wrapped = module.prepared if isinstance(module, PreparedModule) else None
            if prepared is wrapped or prepared.plain is module:
                return prepared
        raise ConfigError(
            f"{len(self._prepared)} modules were set up: pass module=, one that setup() returned"
            if self._prepared
            else "no module was set up: call setup() first"
        )

    # Checkpoints ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> None:
        """Write modules, optimizers and random number generators to a checkpoint. Collective.

        Args:
            path: a folder to be made or replaced, or an fsspec URL.
            state: what else to keep: JSON-able values and small tensors; rank 0's is written.
        """
        save_session(self.session, self._only_prepared(), os.fspath(path), state or {})

    def load(self, path: str | os.PathLike[str], verify: bool = True) -> dict[str, Any]:
        """Read what `save` wrote, at any world size and under any strategy. Collective.

        Returns:
            The `state` that was given to `save`.

        Raises:
            CheckpointError: there is none, it is damaged (unless `verify` is False), or of another program.
        """
        return load_session(self.session, self._only_prepared(), os.fspath(path), verify)

    def _only_prepared(self) -> Prepared:
        if len(self._prepared) != 1:
            raise ConfigError(
                f"save and load take the one module that was set up, and there are {len(self._prepared)}: put "
                "several into one nn.ModuleDict"
            )
        return self._prepared[0]


def launch(run: Run, task: Task) -> Any:
    """Call `task.function(runtime, *task.args)` in every rank of `run`; see `Launcher.launch`."""
    launcher = run.launcher()
    ours: Run | RunConfig = run if launcher.in_process else run.worker_config(launcher)
    return launcher.launch(replace(task, function=_work, args=(ours, task.function, task.args)))


def _work(run: Run | RunConfig, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What every worker does."""
    here = run if isinstance(run, Run) else assemble(run)
    arguments = {field.name: getattr(here.config, field.name) for field in fields(here.config)}
    runtime = Runtime(plugins=arguments.pop("extensions"), **arguments)
    runtime.in_launching_process = isinstance(run, Run)
    runtime._open(here)
    try:
        result = function(runtime, *args)
    except BaseException as error:
        error.failed_at = time.time()  # type: ignore[attr-defined]  # closing makes the others fail, too
        runtime._close(failed=True)
        raise
    runtime._close()
    return result
