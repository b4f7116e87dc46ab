"""`Strategy` and `ParallelStrategy`: bases for plugins that decide how a module is trained.

A strategy object is configuration plus hook implementations. The code that runs during training is in the objects
that its hooks return, so that one strategy object can be pickled to every worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.collectives.base import Collectives, ReduceOp
from stratagem.collectives.facade import RankFacade
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import BrokenPluginError, StratagemError
from stratagem.plugin.component import Capabilities
from stratagem.plugin.hookspecs import hookimpl
from stratagem.strategies.cuts import CUTS, Cut
from stratagem.strategies.live import LiveSessions
from stratagem.strategies.options import ParallelOptions, StrategyOptions, refuse_unknown, show_options
from stratagem.strategies.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn
    from torch.optim import Optimizer
    from typing_extensions import Unpack

    from stratagem.environments.base import Environment
    from stratagem.plugin.requests import ReduceRequest, SetupRequest
    from stratagem.resolve.run import Run
    from stratagem.runtime.session import Session
    from stratagem.strategies.axis import Axis


class Strategy(RankFacade):
    """Trains on one device in one process; the base of all strategies.

    `accelerator`, `checkpoint_io` and `precision_plugin` always have the values that the constructor got. The objects
    that a run uses are in `session`.

    Args:
        options: see `StrategyOptions`.

    Raises:
        ConfigError: an unknown option.
    """

    start_method: str = "forkserver"
    """How worker processes are started, if a run has any: see `ProcessGroupOptions.start_method`."""
    capabilities: Capabilities = Capabilities()
    """Capabilities of classes that no distribution declares. Subclasses inherit their parent's, unless they set their
    own."""
    parallel_devices: Sequence[torch.device] | None = None
    """This node's devices, in place of the run's `devices`; None uses the run's."""
    cluster_environment: Environment | type[Environment] | str | None = None
    """The environment, its class or its name; None detects it."""
    optimizer_cuts: Sequence[Cut] = CUTS
    """How parameters are cut into the shards that a rank's optimizers step. Unless the strategy declares
    "whole_optimizer", the user's optimizers are tried on small tensors cut in these ways, and refused if the results
    differ."""

    axes: Sequence[Axis] = ()
    """The axes that it composes, outermost first; empty for a strategy that is a single parallelism."""

    _sessions: LiveSessions | None = None
    """Live runs of this object in this process. Runs may be nested: attributes describe the last one."""

    def __init__(self, **options: Unpack[StrategyOptions]) -> None:
        self.accelerator = options.pop("accelerator", None)
        self.checkpoint_io = options.pop("checkpoint_io", None)
        self.precision_plugin = options.pop("precision_plugin", None)
        refuse_unknown(self, options)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        show_options(cls)

    # Overridable, without knowing pluggy ---------------------------------------------------------

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """Return the strategy's capabilities under its settings. Called before anything is launched.

        Args:
            declared: the capabilities that its distribution or its class declares.
        """
        return declared

    def advice_for(self, feature: str) -> str | None:
        """Say which setting enables a feature that `refine_capabilities` has removed, as the end of a sentence.

        Args:
            feature: a name from `FEATURES`.

        Returns:
            The advice, or None if no setting enables the feature. The error message then names other strategies.
        """
        return None

    @property
    def rank_unit(self) -> int:
        """The number of ranks must be a multiple of this. In an elastic run, further machines wait."""
        return 1

    def check_run(self, run: Run) -> None:
        """Refuse a run that its settings don't support; called before anything is launched.

        Args:
            run: the assembled run, with its devices, its accelerator and the precision's name.

        Raises:
            UsageError: says what to choose instead.
        """

    def check_module(self, module: nn.Module, run: Run) -> None:
        """Refuse a module that `setup` would refuse, before anything is launched.

        A trainer calls it if the launching process has the whole module. A user's own training loop makes its module
        in the workers, so `setup` must refuse it, too.

        Args:
            module: the user's module. It must not be changed.
            run: the assembled run.

        Raises:
            UsageError: says what to change in the module or in the settings.
        """

    def plan_lines(self) -> Sequence[str]:
        """Return lines for the printed plan, such as settings that were read from a file."""
        return ()

    def describe_run(self, run: Run) -> Sequence[str]:
        """Return `plan_lines`; override this method instead if lines depend on the run, such as on its number of
        ranks.

        Args:
            run: the assembled run. `check_run` has accepted it.
        """
        return self.plan_lines()

    def setup_environment(self) -> None:
        """Prepare this worker before its process group is opened, such as environment variables. Not collective."""

    def setup_worker(self, run: Run) -> None:
        """Call `setup_environment`; override this method instead if you need the run to prepare a worker.

        Args:
            run: the run, as assembled in this process.
        """
        self.setup_environment()

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Return a context for the module's `configure_model`, such as for building in shards; None for none."""
        return None

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Return why `optimizer` can't step shards, as the end of a sentence; None where it can.

        Called for strategies that don't declare "whole_optimizer". Tries a copy of the optimizer on small tensors.

        Args:
            optimizer: with its groups; parameters may be sharded already.
            world_size: number of ranks.

        Raises:
            BrokenPluginError: as `try_optimizer`.
        """
        # With one rank, all cuts but "flat" leave tensors whole. A flattened tensor has lost its shape even there.
        return self.try_optimizer(
            optimizer, [cut for cut in self.optimizer_cuts if cut == "flat" or world_size > 1]
        )

    def try_optimizer(self, optimizer: Optimizer, cuts: Sequence[Cut]) -> str | None:
        """Return why `optimizer` steps shards differently from whole tensors; None if it steps both alike.

        Calls the function that an installed distribution declares in the entry point group
        `stratagem.optimizer_trial`. Override this method for shards that this function doesn't know.

        Args:
            optimizer: with its groups; it isn't changed.
            cuts: the ways in which tensors are cut into shards. Without any, it is only checked that the optimizer
                can be tried, and draws no random numbers: these would differ between ranks.

        Raises:
            BrokenPluginError: no distribution declares such a function.
        """
        import importlib_metadata  # only strategies that shard need it

        for entry_point in importlib_metadata.entry_points(group="stratagem.optimizer_trial"):
            reason: str | None = entry_point.load()(optimizer, cuts)
            return reason
        raise BrokenPluginError(
            f'{type(self).__name__} doesn\'t declare "whole_optimizer", and nothing is installed that tries '
            "optimizers on shards: declare it if every rank steps whole tensors, or pip install stratagem"
        )

    def can_restore(self, shards: object) -> bool:
        """Whether `setup` can continue with the shards that an earlier run in this process left of a module.

        Args:
            shards: `Prepared.left_shards` of that run, under any strategy. If this method returns True, `setup` gets
                them as `SetupRequest.left_shards`.
        """
        return False

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group, and return the run's collectives. Collective."""
        return LocalCollectives(request.device)

    def teardown(self) -> None:
        """Undo `setup_worker`, after the process group was closed. Not collective."""

    # Hooks ----------------------------------------------------------------------------------------

    @hookimpl
    def reduce(self, request: ReduceRequest) -> Collectives:
        """Return the run's collectives."""
        opened = self.open_collectives(request)
        if self._sessions:
            self.session.opened = opened
        return opened

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return the prepared module and optimizers."""
        return Prepared(request)

    # What a user reads while a run is live ----------------------------------------------------------

    @property
    def session(self) -> Session:
        """The live session of this process: the run's device, collectives, precision, checkpointer and modules.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        return self._session_for("a session")

    @property
    def collectives(self) -> Collectives:
        """The collectives of the live run.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        session = self._session_for("ranks")
        # While extensions wrap the result of `open_collectives`, `session.collectives` isn't set yet.
        live: Collectives | None = getattr(session, "collectives", session.opened)
        if live is None:
            raise StratagemError(f"{type(self).__name__} has ranks only after open_collectives")
        return live

    @property
    def root_device(self) -> torch.device:
        """This rank's device in the live run; the first one if it has several.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        return self._session_for("a device").device

    @property
    def num_processes(self) -> int:
        """Number of processes of the live run on each machine.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        return self._session_for("num_processes").run.plan.processes_per_node

    @property
    def model(self) -> nn.Module:
        """The strategy's wrapper around the module, such as DistributedDataParallel; the module itself if there is
        none.

        Raises:
            StratagemError: no run is live, or it has set up several modules; also raised by `lightning_module` and
                `optimizers`.
        """
        prepared, given = self._only_prepared("model")
        return prepared.original_module if prepared.module is given else prepared.module

    @property
    def lightning_module(self) -> nn.Module:
        """The user's module."""
        return self._only_prepared("lightning_module")[0].original_module

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that the live run steps; empty if it doesn't train."""
        return list(self._only_prepared("optimizers")[0].optimizers)

    def _only_prepared(self, name: str) -> tuple[Prepared, nn.Module]:
        """Return the only module that the live run has set up, and the module that the strategy got to wrap."""
        found = self._sessions[-1].set_up_modules() if self._sessions else []
        if not found:
            raise StratagemError(
                f"{type(self).__name__} has {name} only during a run that has set up its module"
            )
        if len(found) > 1:
            raise StratagemError(
                f"{type(self).__name__} has {name} of one module, and this run has set up {len(found)}: use the "
                "objects that `setup` returned"
            )
        return found[0]

    def _session_for(self, what: str) -> Session:
        if not self._sessions:
            raise StratagemError(f"{type(self).__name__} has {what} only during a run")
        return self._sessions[-1]

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is rank 0 of the live run.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        return self.global_rank == 0

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        """See `Collectives.all_gather`."""
        return self.collectives.all_gather(tensor, sync_grads)

    def all_reduce(self, tensor: torch.Tensor, reduce_op: ReduceOp = "mean") -> torch.Tensor:
        """See `Collectives.all_reduce`."""
        return self.collectives.all_reduce(tensor, reduce_op)


show_options(Strategy)


class ParallelStrategy(Strategy):
    """Base of strategies with several processes.

    Args:
        options: see `ParallelOptions`.
    """

    capabilities = Capabilities(processes="per-device")

    def __init__(self, **options: Unpack[ParallelOptions]) -> None:
        self.parallel_devices = options.pop("parallel_devices", None)
        self.cluster_environment = options.pop("cluster_environment", None)
        shared: StrategyOptions = options
        super().__init__(**shared)
