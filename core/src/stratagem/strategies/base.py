"""`Strategy` and `ParallelStrategy`: bases for plugins that decide how a module is trained.

A strategy object is configuration plus hook implementations. What runs lives in the objects that
its hooks answer with, so that one strategy object can be pickled to every worker.
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

    `accelerator`, `checkpoint_io` and `precision_plugin` are what it was given, before and during a run; what the run
    uses is in `session`.

    Args:
        options: those of `StrategyOptions`.

    Raises:
        ConfigError: an unknown option.
    """

    start_method: str = "forkserver"
    """How workers are started, when there are any."""
    capabilities: Capabilities = Capabilities()
    """Capabilities of classes that no distribution declares. Subclasses inherit their parent's, unless they set their
    own."""
    parallel_devices: Sequence[torch.device] | None = None
    """This node's devices, which win over the run's; None leaves them to the run."""
    cluster_environment: Environment | type[Environment] | str | None = None
    """Wins over detection; None detects."""
    optimizer_cuts: Sequence[Cut] = CUTS
    """How parameters are cut into the shards that a rank's optimizers step. Unless the strategy declares
    "whole_optimizer", the user's optimizers are tried on small tensors cut in these ways, and refused if the results
    differ."""

    axes: Sequence[Axis] = ()
    """The axes that it composes, outermost first; none for a strategy that is one parallelism."""

    _sessions: LiveSessions | None = None
    """This object's live runs in this process. The last one counts, since runs may be nested."""

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
        """Return its capabilities with its settings, if these change them; called before anything is launched.

        Args:
            declared: by its distribution, or by its class.
        """
        return declared

    def advice_for(self, feature: str) -> str | None:
        """Return which setting gives a feature that `refine_capabilities` has removed, as the end of a sentence.

        Args:
            feature: a name from `FEATURES`.

        Returns:
            None where no setting gives it: the message then names other strategies.
        """
        return None

    @property
    def rank_unit(self) -> int:
        """The number of ranks is a multiple of this; where it changes during a run, further machines wait."""
        return 1

    def check_run(self, run: Run) -> None:
        """Refuse a run that its settings don't support; called before anything is launched.

        Args:
            run: assembled: the devices, the accelerator, the precision's name.

        Raises:
            UsageError: says what to choose instead.
        """

    def plan_lines(self) -> Sequence[str]:
        """Return lines for the printed plan, as of settings that come from a file."""
        return ()

    def describe_run(self, run: Run) -> Sequence[str]:
        """Return `plan_lines`; override this method instead if lines depend on the run, such as on its number of
        ranks.

        Args:
            run: assembled, and checked by `check_run`.
        """
        return self.plan_lines()

    def setup_environment(self) -> None:
        """Prepare this worker before its process group is opened: variables, libraries. Not collective."""

    def setup_worker(self, run: Run) -> None:
        """Call `setup_environment`; override this method instead if you need the run to prepare a worker.

        Args:
            run: as assembled in this process.
        """
        self.setup_environment()

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """A context around the module's `configure_model`, as for building in shards; None for none."""
        return None

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Return why `optimizer` can't step shards, as the end of a sentence; None where it can.

        Asked of strategies that don't declare "whole_optimizer"; tries a copy of it on small stand-ins.

        Args:
            optimizer: with its groups; parameters may be sharded already.
            world_size: number of ranks.

        Raises:
            BrokenPluginError: as `try_optimizer`.
        """
        # Rows of a single rank are all rows; what is flattened has lost its shape there, too.
        return self.try_optimizer(
            optimizer, [cut for cut in self.optimizer_cuts if cut == "flat" or world_size > 1]
        )

    def try_optimizer(self, optimizer: Optimizer, cuts: Sequence[Cut]) -> str | None:
        """Return why `optimizer` steps shards otherwise than whole tensors; None where it doesn't.

        Asks the function that an installed distribution declares in the group of entry points
        `stratagem.optimizer_trial`. Override it for shards that this function doesn't know.

        Args:
            optimizer: with its groups; it is left as it is.
            cuts: the ways in which tensors are cut into shards; none to find out whether it can be tried at all, and
                draws no random numbers, which differ between ranks.

        Raises:
            BrokenPluginError: no distribution declares one.
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
            shards: `Prepared.left_shards` of that run, of any strategy; `SetupRequest.left_shards` if so.
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
        """Answer with the run's collectives."""
        opened = self.open_collectives(request)
        if self._sessions:
            self.session.opened = opened
        return opened

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with the prepared module and optimizers."""
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
        # While extensions wrap what `open_collectives` returned, that is all there is.
        live: Collectives | None = getattr(session, "collectives", session.opened)
        if live is None:
            raise StratagemError(f"{type(self).__name__} has ranks only after open_collectives")
        return live

    @property
    def root_device(self) -> torch.device:
        """This rank's device in the live run, the first where it has several.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        return self._session_for("a device").device

    @property
    def num_processes(self) -> int:
        """Processes of the live run on each of its machines.

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
        """Those that the live run steps; none where it doesn't train."""
        return list(self._only_prepared("optimizers")[0].optimizers)

    def _only_prepared(self, name: str) -> tuple[Prepared, nn.Module]:
        """Return the one module that the live run has set up, and what the strategy was given to wrap."""
        found = self._sessions[-1].set_up_modules() if self._sessions else []
        if not found:
            raise StratagemError(
                f"{type(self).__name__} has {name} only during a run that has set up its module"
            )
        if len(found) > 1:
            raise StratagemError(
                f"{type(self).__name__} has {name} of one module, and this run has set up {len(found)}: ask what "
                "each `setup` returned"
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
        options: those of `ParallelOptions`.
    """

    capabilities = Capabilities(processes="per-device")

    def __init__(self, **options: Unpack[ParallelOptions]) -> None:
        self.parallel_devices = options.pop("parallel_devices", None)
        self.cluster_environment = options.pop("cluster_environment", None)
        shared: StrategyOptions = options
        super().__init__(**shared)
