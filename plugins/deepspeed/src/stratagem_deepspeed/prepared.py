"""What the loop calls per step under deepspeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.equal_buffers import EqualBuffers
from stratagem_sharding.part_of_optimizer import StatesOfPart, no_state_dict
from stratagem_sharding.rank_buffers import RankBuffers
from stratagem_sharding.torch_private import number_of_step_hooks
from torch import nn
from torch.optim import Optimizer

from stratagem import Clipping, CombinationError, ConfigError, Prepared, SetupRequest
from stratagem.errors import DataError
from stratagem.sdk.loops import loss_of
from stratagem.sdk.states import optimizer_replicas
from stratagem_deepspeed import native, output
from stratagem_deepspeed.backwards import Backwards, WindowGradients, dropped_within_window, refuse_gradients
from stratagem_deepspeed.checkpoints import engine_checkpoint
from stratagem_deepspeed.construction import Traces, materialize, shard_parameters
from stratagem_deepspeed.deepspeed_private import forget_children, leave_forward_stack
from stratagem_deepspeed.drive import OwnFolders
from stratagem_deepspeed.following import follow_gradients
from stratagem_deepspeed.forward import Computed
from stratagem_deepspeed.frozen import Frozen
from stratagem_deepspeed.groups import guard, remove_guards
from stratagem_deepspeed.kept import Parts, keep, own_parts
from stratagem_deepspeed.masters import FlatViews, follow_parameters
from stratagem_deepspeed.optimizer import client_groups, client_optimizer, repair_adagrad
from stratagem_deepspeed.originals import Originals
from stratagem_deepspeed.partitioned import Partitioned, empty_parameters_explained
from stratagem_deepspeed.refusals import check_elements, check_known
from stratagem_deepspeed.starting import start_engine

if TYPE_CHECKING:
    from stratagem_sharding.deferred_init import Construction

    from stratagem import CheckpointReader
    from stratagem_deepspeed.configuration import Configuration


NO_LOSS_TIMEOUT_S = 5.0
"""How long a rank without a loss waits for the others at stage 3, where it can only continue if none has a loss."""


class DeepSpeedPrepared(Prepared):
    """A module in a DeepSpeed engine.

    Args:
        request: as the `setup` hook received it.
        library: the imported engine's package.
        configuration: as known before the run.
        construction: the recorded values of the module's tensors on "meta"; None if there are none.

    Attributes:
        engine: the DeepSpeed engine; None where nothing is trained and no parameter is sharded.
    """

    def __init__(
        self,
        request: SetupRequest,
        library: Any,
        configuration: Configuration,
        construction: Construction | None,
    ) -> None:
        self._configuration, self.stage = configuration, configuration.stage
        self._collectives = request.collectives
        self._world_size = request.collectives.world_size
        self.leaves_module_sharded = self.stage == 3 and self._world_size > 1
        self.supports_inference_mode = self.stage != 3  # parameters are gathered into buffers that stay
        module, config = request.original_module, configuration.for_run(request)
        self._folders = OwnFolders(config)
        self._traces = Traces(request.module)
        output.silence_deprecations()
        parts = Parts(request.left_shards, request.collectives)
        if self.stage == 3:
            check_elements(module)
        # Before parameters are sharded, so that code that groups them by shape sees the full shapes.
        client = client_optimizer(request, configuration.makes_optimizer)
        originals = Originals((), False)
        if self.stage == 3:
            made = shard_parameters(request, construction, parts, config)
        else:
            made = materialize(request, construction, parts)
            if request.precision.param_dtype is not None:
                request.precision.convert_module(request.module)
            rounded = module.parameters() if configuration.half(request.precision.name) else ()
            originals = Originals(rounded, request.collectives.rank == 0)
            request.module.to(request.device)
        self._computed = Computed(request)
        for group in client.param_groups if client is not None else ():
            group["params"] = [made[id(p)][1] if id(p) in made else p for p in group["params"]]
        self.engine: Any = None
        self._groups, live = client_groups(module, client, self.stage)
        if request.loop.training or self.stage == 3:
            trains = request.loop.training
            self.engine = start_engine(library, self._computed, self.stage, config, client, trains)
            self.engine.set_gradient_accumulation_boundary(True)
        optimizers: list[Optimizer] = []
        if request.loop.training:
            optimizers = [self.engine.basic_optimizer]
            repair_adagrad(self.engine, self.stage)
            if client is None:
                self._groups, live = client_groups(module, optimizers[0], self.stage, self.engine)
        super().__init__(request, self.engine or self._computed, optimizers)
        self.is_direct = True
        parameters = dict(module.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        # A trainer keeps backwards and steps in order; only your own training loop needs the checks.
        self._backwards: Backwards | None = None
        self._untrained: list[Any] = []
        if optimizers and request.steps is None:
            self._backwards = Backwards(
                self.engine,
                self.stage,
                self._remove_engine_gradients,
                request.original_module.named_parameters(),
            )
        elif not request.loop.training and request.steps is None and self._world_size > 1:
            self._untrained = refuse_gradients(module, self.engine)
        self._window_gradients = WindowGradients(request.original_module.named_parameters())
        self._gradients = (
            follow_gradients(self.engine, self.stage, names, request, self._backwards)
            if request.loop.training
            else None
        )
        paused = self._gradients.paused if self._gradients is not None else {}
        self._paused = paused
        self._checkpoint = engine_checkpoint(self, request, config, self._groups, live, paused)
        self._originals = originals
        originals.to_engine(self._checkpoint.parameters)
        self._equal_buffers = EqualBuffers(
            self._computed,
            self._world_size,
            differ=True,
            rank_buffers=RankBuffers(request.original_module, request.collectives, has_option=False),
        )
        trained = {name for group in live for name in group}
        frozen = {name for _, group in self._groups for name in group} - trained if self.stage else set()
        self._frozen = Frozen(names, {n: parameters[n] for n in sorted(frozen)}, optimizers, self.stage)
        views = optimizers and self.stage in (1, 2)
        self._flat_views = FlatViews([parameters[name] for name in trained] if views else ())
        self._guard_groups()
        self._partitioned: Partitioned | None = None
        if self.stage == 3:
            steps = [parameters[name] for name in trained]
            self._partitioned = Partitioned(self.engine, parameters, steps, request.collectives)

    # Per step -------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._remove_engine_gradients()
        if self._backwards is not None:
            self._backwards.note_forward()
        self._equal_buffers.make_equal()
        if self._partitioned is not None:
            self._partitioned.check_assigned()
        with self._explained():
            result = self.module(*args, **kwargs)
        self._equal_buffers.note_forward(self.original_module.training)
        if self._backwards is not None:
            self._backwards.note_forward_end()
        return result

    def evaluating(self) -> AbstractContextManager[Any]:
        self._equal_buffers.make_equal()
        return super().evaluating()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if self._backwards is not None:
            self._backwards.note_forward()
        # Not through the engine, which counts forwards. At stage 3, hooks on the modules gather the parameters.
        return self._computed(*args, **kwargs)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        result = super().forward_backward(*args, divisor=divisor, sync=sync)
        if sync and loss_of(result) is None:
            self._backward_nothing()
        return result

    def _backward_nothing(self) -> None:
        """Join the other ranks' reductions with zeros."""
        if self.stage == 3 and not self._collectives.all_arrive("no loss", NO_LOSS_TIMEOUT_S):
            raise DataError(
                f"training_step returned None on rank {self._collectives.rank} and not on all ranks, and under "
                "deepspeed's stage 3 every rank takes part in gathering parameters for a backward: return a loss "
                "that is multiplied by 0, or choose stage 2"
            )
        nothing = torch.zeros(1, device=self.device, requires_grad=True)
        self.engine.backward(nothing.sum(), scale_wrt_gas=False)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - {"retain_graph"})
        if unknown:
            raise ConfigError(
                f"backward got {unknown[0]}, and deepspeed's takes retain_graph alone: leave it out, or choose "
                "strategy fsdp or ddp"
            )
        if not self.optimizers:
            raise ConfigError(
                f"setup() got no optimizer with {type(self.original_module).__name__}, and deepspeed trains with the "
                "one that it gets there: pass it to setup() with the module, and step the one that it returns"
            )
        self._frozen.check()
        self._remove_engine_gradients()
        if self._backwards is not None:
            self._backwards.begin()
            self._backwards.refuse_other_flags()
            self._window_gradients.check()
        with self._explained():
            self.engine.backward(loss, scale_wrt_gas=False, **kwargs)
        if self._backwards is not None:
            is_last = bool(self.engine.is_gradient_accumulation_boundary())
            self._backwards.end(is_last)
            if is_last or self.stage > 1:
                self._window_gradients.forget()
            else:
                self._window_gradients.note()

    def _explained(self) -> AbstractContextManager[None]:
        return nullcontext() if self._partitioned is None else empty_parameters_explained()

    def averaged_ranks(self) -> int:
        raise CombinationError(
            "deepspeed's engine has the gradients to itself until it steps, so that they can't be divided by weights "
            "of the losses: return the mean of the losses, or choose strategy fsdp or ddp_sharded"
        )

    def abandon_backward(self) -> None:
        if self._backwards is not None:
            self._backwards.fail()

    def _remove_engine_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.remove_engine_gradients()

    def complete_gradients(self, index: int) -> None:
        if self._backwards is None or self._gradients is None:
            return
        self._gradients.remove_engine_gradients()
        if not self._backwards.waits_for_reduction:
            self._gradients.check_assigned()
        self._backwards.check_step()

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.engine.set_gradient_accumulation_boundary(True)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self._accumulating()

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        """Check that `clipping` is the engine's setting, since the engine clips within `step`. Return None.

        Raises:
            ConfigError: it differs.
        """
        known = self.engine.gradient_clipping()
        if clipping.max_value is not None or (clipping.max_norm or 0.0) != known:
            raise ConfigError(
                f"deepspeed clips at a norm of {known:g}, as set before it started, and clip got {clipping}: pass "
                "clipping=Clipping(max_norm=...) to setup"
            )
        return None

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        if closure is not None:
            raise CombinationError(
                "strategy deepspeed steps without evaluating the loss again, and got a closure: choose an optimizer "
                "that needs none, or strategy ddp"
            )
        if self.stage and self._world_size > 1 and number_of_step_hooks(self.optimizers[index]):
            raise CombinationError(
                f"{type(self.optimizers[index]).__name__} has step hooks, and stage {self.stage} of deepspeed steps "
                "flat shards in the place of the parameters, which is what they would see: call what they do around "
                "optimizer.step(), or choose stage 0"
            )
        self._frozen.check()
        if self.stage == 3:
            check_known(self.original_module)
        if self._gradients is not None:
            self._gradients.before_step()
        self.follow_changes()
        self.engine.step()
        self._guard_groups()
        if self._partitioned is not None:
            self._partitioned.note_step()
        if self._backwards is not None:
            self._backwards.forget()
        return bool(self.engine.was_step_applied())

    def _guard_groups(self) -> None:
        if self.stage and self._backwards is not None:
            guard(self.optimizers)

    def follow_changes(self) -> None:
        """Copy changes to parameters since the last step into the engine's own copies."""
        if self._partitioned is not None:
            self._partitioned.follow_changes()
        elif self.stage and self.optimizers:
            self._flat_views.restore()
            follow_parameters(self.engine.optimizer)

    def zero_grad(self, index: int) -> None:
        """Drop gradients at stage 0; the other stages hold them until `step`.

        Raises:
            GradientError: the engine has accumulated gradients in an accumulation window that isn't over.
        """
        if self._backwards is None:
            return
        if self.stage == 0:
            super().zero_grad(index)
            self._backwards.forget()
            self._window_gradients.forget()
        elif self._backwards.waits_for_reduction:
            raise dropped_within_window()

    def replicas(self) -> Iterator[tuple[str, Any]]:
        if self._partitioned is None:
            yield from super().replicas()
            return
        # Parameters are sharded, so there are no replicas of them to compare.
        yield "the order in which layers were called", self._partitioned.order
        trained = [name for name, p in self.original_module.named_parameters() if p.requires_grad]
        yield "the set of parameters that require gradients", trained
        for index, optimizer in enumerate(self.optimizers):
            yield from optimizer_replicas(index, optimizer, self.has_all_states)

    def optimizer_state(self, index: int) -> Any:
        if self.stage == 0 or self._world_size == 1:
            return super().optimizer_state(index)
        return StatesOfPart(self.optimizers[index], f"deepspeed's stage {self.stage}")

    def optimizer_method(self, index: int, method: MethodType) -> Any:
        if self.stage == 0:
            return super().optimizer_method(index, method)
        raise ConfigError(
            f"{type(method.__self__).__name__}.{method.__name__} can't be called under deepspeed's stage "
            f"{self.stage}, whose engine steps flat copies of parameters: choose an optimizer for which step() is "
            "enough, or strategy ddp"
        )

    def optimizer_state_dict(self, index: int) -> dict[str, Any]:
        """Return the optimizer's state_dict: at stage 0, and in a single process at stages 1 and 2.

        Raises:
            ConfigError: the engine's states belong to flat shards.
        """
        if self._has_states_of_shards:
            raise no_state_dict(self.optimizers[index], f"deepspeed's stage {self.stage}")
        return super().optimizer_state_dict(index)

    def load_optimizer_state_dict(self, index: int, state: dict[str, Any]) -> None:
        """Load a state_dict, in the cases in which `optimizer_state_dict` returns one."""
        if self._has_states_of_shards:
            raise no_state_dict(self.optimizers[index], f"deepspeed's stage {self.stage}")
        super().load_optimizer_state_dict(index, state)

    @property
    def _has_states_of_shards(self) -> bool:
        return self.stage == 3 or (self.stage > 0 and self._world_size > 1)

    # Checkpoint -----------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._equal_buffers.make_equal()
        self.follow_changes()
        return self._checkpoint.model_tensors()

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return self._checkpoint.optimizer_tensors()

    def state(self) -> dict[str, Any]:
        return self._checkpoint.state()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self._flat_views.restore()
        self._checkpoint.load(reader, state, model_only=model_only)
        if self._partitioned is not None:
            self._partitioned.follow_load()

    def save_engine(self, folder: str, tag: str | None = None) -> None:
        """Write a checkpoint in DeepSpeed's own format, which is made of pickles. Collective."""
        with self._plain_groups():
            native.save(self.engine, folder, tag, self._paused)

    def load_engine(self, folder: str, tag: str | None = None, *, model_only: bool = False) -> None:
        """Read a checkpoint in DeepSpeed's own format, and run the code in its pickles. Collective.

        Raises:
            CheckpointError: there is no checkpoint, or another number of processes wrote it.
        """
        with self._plain_groups():
            native.load(self.engine, self._configuration, folder, tag, model_only, self._paused)
        if self._partitioned is not None:
            self._partitioned.note_step()

    @contextmanager
    def _plain_groups(self) -> Iterator[None]:
        remove_guards(self.optimizers)
        try:
            yield
        finally:
            self._guard_groups()

    def restore_module(self) -> None:
        self._equal_buffers.make_equal()
        self.follow_changes()
        self._originals.to_module(self._checkpoint.parameters)

    def release(self) -> None:
        whole: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}
        if self.stage == 3 and self._world_size == 1:
            whole = self._checkpoint.whole_parameters()
        remove_guards(self.optimizers)
        super().release()
        del self._checkpoint, self._flat_views
        engine, self.engine = self.engine, None
        if self._gradients is not None:
            self._gradients.remove()
            self._gradients = None
        if self._backwards is not None:
            self._backwards.remove()
            self._backwards = None
        for handle in self._untrained:
            handle.remove()
        parts: list[tuple[nn.Parameter, torch.Tensor, torch.Size]] = []
        if self._partitioned is not None:
            if self.leaves_module_sharded:
                parts = own_parts(self.original_module, self._partitioned)
            self._partitioned.remove()
            self._partitioned = None
        self.module = self.original_module
        if engine is not None:
            engine.destroy()  # leaves references to the module (compare deepspeedai/DeepSpeed#7204)
            if self.stage == 3:
                leave_forward_stack(engine.module)
            engine.optimizer = engine.basic_optimizer = None
            forget_children(engine)
        self._folders.close()
        for parameter, value in whole.values():
            parameter.data = value
        self._traces.remove()
        if parts:
            self.left_shards = keep(parts)
        output.stop()
