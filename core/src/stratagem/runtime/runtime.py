"""`Runtime`: a training loop of your own under any strategy; the trainer is built on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

from torch import nn
from torch.optim import Optimizer

from stratagem.config import Devices
from stratagem.data.batches import moved
from stratagem.errors import StratagemError, UsageError
from stratagem.launchers.base import Task
from stratagem.plugin.requests import Clipping, LoopPlan
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.checkpoint import load_session, save_session
from stratagem.runtime.loaders import EpochLoader, EvalLoader, share_loader
from stratagem.runtime.loop import only_prepared, optimizers_for, prepared_of, prepared_of_optimizer, wrap
from stratagem.runtime.plan import announce, announce_by_value
from stratagem.runtime.script_flags import run_config
from stratagem.runtime.session import Session, seed_everything
from stratagem.strategies.prepared import Prepared

if TYPE_CHECKING:
    import torch

    from stratagem.collectives.base import Collectives, ReduceOp


class Runtime:
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
        self.config = run_config(
            "Runtime",
            plugins,
            strategy=strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            seed=seed,
            **further,
        )
        self.in_launching_process = True
        """Whether the caller of `launch` sees what happens to objects here."""
        self._session: Session | None = None
        self._prepared: list[Prepared] = []

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
        from stratagem.runtime.launching import attach, launch

        if function is None:
            return attach(run, self)
        return launch(run, Task(function, args, notice=None if quiet else announce_by_value), self)

    def open(self, run: Run, *, in_launching_process: bool) -> None:
        """Bring `run` to life in this rank, as `launch` does. Collective.

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

    @property
    def collectives(self) -> Collectives:
        """How the ranks talk."""
        return self.session.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.session.device

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        return self.collectives.rank

    @property
    def local_rank(self) -> int:
        """This process among those of its node, from 0."""
        return self.collectives.local_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.collectives.world_size

    @property
    def data_rank(self) -> int:
        """Which part of the data this process reads, from 0; ranks that share a copy of the model read one."""
        return self.collectives.data.rank

    @property
    def data_ranks(self) -> int:
        """In how many parts the data are shared."""
        return self.collectives.data.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        """See `Collectives.all_reduce`."""
        return self.collectives.all_reduce(tensor, op)

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        """See `Collectives.all_gather`."""
        return self.collectives.all_gather(tensor, sync_grads)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """See `Collectives.broadcast`."""
        return self.collectives.broadcast(value, src)

    def barrier(self, name: str | None = None) -> None:
        """See `Collectives.barrier`."""
        self.collectives.barrier(name)

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            print(*values, flush=True)

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
            LoopPlan(bool(optimizers), accumulate=accumulate, clipping=clipping or Clipping()),
            run_dir=self.config.run_dir,
        )
        self._prepared.append(prepared)
        wrapped, stepped = wrap(prepared, self.session)
        return (wrapped, *stepped) if optimizers else wrapped

    @overload
    def dataloader(
        self,
        loader: Iterable[Any],
        *,
        evaluation: Literal[False] = False,
        use_distributed_sampler: bool = True,
    ) -> EpochLoader: ...

    @overload
    def dataloader(
        self, loader: Iterable[Any], *, evaluation: Literal[True], use_distributed_sampler: bool = True
    ) -> EvalLoader: ...

    def dataloader(
        self, loader: Iterable[Any], *, evaluation: bool = False, use_distributed_sampler: bool = True
    ) -> EpochLoader | EvalLoader:
        """Return `loader` shared among ranks and on the device: docs/guides/data.md. Collective.

        Args:
            loader: a DataLoader, or any iterable of batches.
            evaluation: each sample comes once over all ranks, in the data's own order. Otherwise ranks
                have equally many batches, in the order that the loader says.
            use_distributed_sampler: whether to share out; False leaves every loader as it is.

        Raises:
            DataError: several loaders were given, or one without a batch.
        """
        mover = self._prepared[-1].dataloader if self._prepared else partial(moved, device=self.device)
        return share_loader(self.session, loader, mover, evaluation=evaluation, share=use_distributed_sampler)

    def backward(self, loss: torch.Tensor, module: nn.Module | None = None) -> None:
        """Run backward through the strategy; collective.

        Args:
            loss: a scalar.
            module: what `setup` returned; only needed where several modules were set up.
        """
        prepared_of(self._prepared, module).backward(loss)

    def no_sync(self, module: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch that isn't the last of its optimizer step."""
        return prepared_of(self._prepared, module).no_sync()

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
        prepared, index = prepared_of_optimizer(self._prepared, optimizer)
        return prepared.clip(index, Clipping(max_norm, max_value, norm_type))

    def save(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> None:
        """Write modules, optimizers and random number generators to a checkpoint. Collective.

        Args:
            path: a folder to be made or replaced, or an fsspec URL.
            state: what else to keep: JSON-able values and small tensors; rank 0's is written.
        """
        save_session(self.session, only_prepared(self._prepared), os.fspath(path), state or {})

    def load(self, path: str | os.PathLike[str], verify: bool = True) -> dict[str, Any]:
        """Read what `save` wrote, at any world size and under any strategy. Collective.

        Returns:
            The `state` that was given to `save`.

        Raises:
            CheckpointError: there is none, it is damaged (unless `verify` is False), or of another program.
        """
        return load_session(self.session, only_prepared(self._prepared), os.fspath(path), verify)
