"""`Recorder`: hooks on one model and on optimizer steps, which keep what passes for a few steps."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stratagem_diff import values
from stratagem_diff.deepspeed_private import ZeroShard, is_partitioned, zero_shard
from stratagem_diff.files import Entry, ModelInfo, Place, RankWriter
from stratagem_diff.names import called_modules, named_buffers, named_modules, named_parameters
from stratagem_diff.rounding import OtherRounding
from stratagem_diff.torch_private import in_backward, local_shard, version

STEPS = 3
"""Default number of recorded optimizer steps."""
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class RecordOptions:
    """What is recorded."""

    steps: int = STEPS
    """Optimizer steps; recording ends after them, and the program goes on."""
    whole: int = values.WHOLE
    """Tensors of up to so many elements are kept whole, larger ones as projections of their rows."""
    rounding: bool = False
    """Move values by a unit in the last place: a second record of a run, with which its own error is measured."""
    dropout: bool = True
    """Whether dropout is left as it is; False sets its probability to 0."""


class Recorder:
    """Records one model's training on this rank.

    Args:
        folder: of the record, the same on all ranks, and one that all can write to.
        options: what is recorded.
        rank: this process's; by torch.distributed or the environment of torchrun if not given.
        world_size: number of ranks; given with `rank`.
        first_step: number of the first step that is recorded, in a run whose random numbers were set before it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: RecordOptions | None = None,
        *,
        rank: int | None = None,
        world_size: int = 1,
        first_step: int | None = None,
    ) -> None:
        self._folder, self._options = folder, options or RecordOptions()
        self._given_rank = None if rank is None else (rank, world_size)
        self._rounding = OtherRounding() if self._options.rounding else None
        self._handles: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._root: nn.Module | None = None
        self._writer: RankWriter | None = None
        self._entries: list[Entry] = []
        self._has_own_seed, self._first_step = first_step is None, first_step or 1
        self._step, self._micro_batch = self._first_step, -1
        self._depth = 0
        self._root_is_called = self._has_gradients = self._stepped = False
        self._calls: dict[str, int] = {}
        self._done: set[tuple[int, tuple[str, ...]]] = set()
        self.is_closed = False

    @property
    def is_watching(self) -> bool:
        """Whether a model is being recorded."""
        return self._root is not None

    def watch(self, model: nn.Module, optimizers: Sequence[Any] = ()) -> None:
        """Begin to record a model; wrappers of libraries around it are left out of names. Not collective.

        Args:
            model: the user's model, or a wrapper around it.
            optimizers: those whose steps are recorded; all that step the model's parameters where none is given.

        Raises:
            UsageError: the folder can't be written to.
        """
        root = self._root = model
        # accelerate and others give an optimizer that has torch's own one as `optimizer`, sharded ones as `optim`.
        self._optimizers = {
            id(each)
            for outer in optimizers
            for each in (outer, getattr(outer, "optimizer", None), getattr(outer, "optim", None))
        }
        self._versions = {id(each): version(each) for _, each in named_parameters(root)}
        self._rank, self._world_size = self._given_rank or _rank_and_size()
        self._writer = RankWriter(self._folder, self._rank)
        modules = named_modules(root)
        aliases: dict[str, str] = {}
        first_names: dict[int, str] = {}
        for name, parameter in named_parameters(root):
            if first_names.setdefault(id(parameter), name) != name:
                aliases[name] = first_names[id(parameter)]
        self._model = ModelInfo({name: type(module).__name__ for name, module in modules.items()}, aliases)
        if not self._options.dropout:
            for module in modules.values():
                for attribute in _dropout_probabilities(module):
                    self._undo.append(partial(setattr, module, attribute, getattr(module, attribute)))
                    setattr(module, attribute, 0.0)
        for name, parameter in _once(named_parameters(root)):
            shard = zero_shard(parameter) if is_partitioned(parameter) else None
            self._keep_of(Place(0, "start", name), shard, parameter if shard is None else shard.flat)
        for name, buffer in named_buffers(root):
            self._keep(Place(0, "start", name), buffer, 0)
        if self._rounding is not None:
            self._rounding.move_parameters(root)
        for name, module in called_modules(root).items():
            self._handles += [
                module.register_forward_pre_hook(partial(self._before_call, name), with_kwargs=True),
                module.register_forward_hook(partial(self._after_call, name), always_call=True),
            ]
        self._handles += [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Write what is left, and take the hooks off. A record without any step says so when it is read."""
        for handle in self._handles:
            handle.remove()
        for undo in self._undo:
            undo()
        self._handles, self._undo = [], []
        if self._writer is None or self.is_closed:
            return
        self.is_closed = True
        self._writer.write_step(self._entries)
        self._entries = []
        facts = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "seed": torch.initial_seed() if self._has_own_seed else None,
            "rounding": self._options.rounding,
            "dropout": "as it is" if self._options.dropout else "off",
            "first_step": self._first_step,
        }
        steps = self._step - self._first_step + self._stepped
        self._writer.close(self._rank, self._world_size, steps, self._model, facts)

    # Calls of modules ---------------------------------------------------------------------------

    def _before_call(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or in_backward():
            return
        if self._depth == 0 and not self._begin(name):
            return
        self._depth += 1
        if self._depth == 1:
            call = self._calls.get(name, 0)
            for item, tensor in tensors_in([*args, dict(kwargs)] if kwargs else list(args)):
                self._keep(Place(self._step, "input", name, call, item), tensor, self._micro_batch)

    def _begin(self, name: str) -> bool:
        """Whether this outermost call is recorded; count steps and micro-batches."""
        if self._stepped and not self._next_step():
            return False
        is_root = name == ""
        self._root_is_called = self._root_is_called or is_root
        if is_root or self._micro_batch < 0 or (self._has_gradients and not self._root_is_called):
            self._micro_batch += 1
            self._calls = {}
            self._has_gradients = False
        return True

    def _next_step(self) -> bool:
        """Write the step that is complete; False where it was the last one."""
        if self._step - self._first_step + 1 >= self._options.steps:
            self.close()
            return False
        assert self._writer is not None
        self._writer.write_step(self._entries)
        self._entries = []
        self._step, self._micro_batch, self._stepped = self._step + 1, -1, False
        self._done.clear()
        return True

    def _after_call(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        if torch.compiler.is_compiling() or self._depth == 0 or not torch.is_grad_enabled() or in_backward():
            return None
        self._depth -= 1
        if output is None:
            return None
        if self._rounding is not None:
            output = self._rounding.moved(output, name)
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        for item, tensor in tensors_in(output):
            place = Place(self._step, "output", name, call, item)
            self._keep(place, tensor, self._micro_batch)
            if tensor.requires_grad:
                hook = partial(self._gradient, name, call, item, self._micro_batch)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch has no types for it
        return output if self._rounding is not None else None

    def _gradient(self, name: str, call: int, item: str, micro_batch: int, gradient: Tensor) -> None:
        if self.is_closed:
            return
        self._has_gradients = True
        self._keep(Place(self._step, "output gradient", name, call, item), gradient, micro_batch)

    # Steps of optimizers ---------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        mine = self._named(optimizer)
        # No call of the model was seen since its last step: all of it is compiled.
        if mine and _key(optimizer, mine) in self._done and not self._next_step():
            return
        # The inner optimizer of a sharded one has the parameters whose gradients this rank has whole.
        if not _has_closure(args, kwargs) and _inner(optimizer) is None:
            self._keep_gradients(mine)

    def _keep_gradients(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in parameters:
            shard = zero_shard(parameter)
            gradient = parameter.grad if shard is None else shard.flat.grad
            if gradient is not None:
                self._keep_of(Place(self._step, "parameter gradient", name), shard, gradient)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        mine = self._named(optimizer)
        if not mine or self.is_closed:
            return
        self._stepped, self._depth = True, 0
        self._done.add(_key(optimizer, mine))
        inner = _inner(optimizer)
        if inner is not None:
            # It has gone by; the others' updates have come from their ranks since.
            kept = {name for name, _ in self._named(inner)}
            mine = [(name, each) for name, each in mine if name not in kept]
        elif _has_closure(args, kwargs):
            self._keep_gradients(mine)
        for name, parameter in mine:
            shard = zero_shard(parameter)
            stepped = parameter if shard is None else shard.flat
            for key, state in optimizer.state.get(stepped, {}).items():
                if isinstance(state, (Tensor, int, float)):
                    place = Place(self._step, "optimizer state", name, item=str(key))
                    value = torch.as_tensor(state)
                    self._keep_of(place, shard if value.shape == stepped.shape else None, value)
            self._keep_of(Place(self._step, "parameter", name), shard, stepped)
        assert self._root is not None
        self._keep_moved()
        for name, buffer in named_buffers(self._root):
            self._keep(Place(self._step, "buffer", name), buffer, 0)

    def _keep_moved(self) -> None:
        """Keep frozen parameters that something has changed since, such as a moving average of the weights."""
        assert self._root is not None
        for name, parameter in _once(named_parameters(self._root)):
            if parameter.requires_grad or self._versions.get(id(parameter)) == version(parameter):
                continue
            self._versions[id(parameter)] = version(parameter)
            self._keep(Place(self._step, "parameter", name), parameter, 0)

    def _named(self, optimizer: Optimizer) -> Sequence[tuple[str, nn.Parameter]]:
        """The parameters of the model that an optimizer steps, by name."""
        if (
            self._root is None
            or self.is_closed
            or (self._optimizers and id(optimizer) not in self._optimizers)
        ):
            return []
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        parameters = _once(named_parameters(self._root))
        found = [
            (name, each)
            for name, each in parameters
            if id(each) in stepped or ((shard := zero_shard(each)) is not None and id(shard.flat) in stepped)
        ]
        # A given optimizer that steps none of them was made before they were replaced: they are to be seen unchanged.
        return found if found or not self._optimizers else parameters

    def _keep_of(self, place: Place, shard: ZeroShard | None, tensor: Tensor) -> None:
        """Keep a tensor of a parameter's shape, or what a flat one has of a shard."""
        if shard is None:
            self._keep(place, tensor, 0)
            return
        with torch.no_grad():
            value, where = shard.placed(tensor.to("cpu"))
            self._entries.append(Entry(place, 0, values.keep(value, where, self._options.whole)))

    def _keep(self, place: Place, tensor: Tensor, micro_batch: int) -> None:
        shard = None
        with torch.no_grad():
            tensor = tensor.detach()
            if isinstance(tensor, DTensor):
                tensor, shard = local_shard(tensor)
            if tensor.is_meta or tensor.layout != torch.strided or tensor.is_complex():
                return
            self._entries.append(Entry(place, micro_batch, values.keep(tensor, shard, self._options.whole)))


def tensors_in(output: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of all tensors in nested lists, tuples and mappings."""
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, item in output.items():
            yield from tensors_in(item, f"{path}.{key}" if path else str(key))
    elif isinstance(output, (list, tuple)):
        for index, item in enumerate(output):
            yield from tensors_in(item, f"{path}.{index}" if path else str(index))


def _dropout_probabilities(module: nn.Module) -> list[str]:
    """Names of attributes that are probabilities of dropout; attention and recurrent layers have their own."""
    if isinstance(module, DROPOUTS):
        return ["p"]
    return [name for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)]


def _has_closure(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a step computes its gradients itself, as under Lightning: they exist only after it has begun."""
    return any(callable(each) for each in (*args[1:], kwargs.get("closure")))


def _key(optimizer: Optimizer, mine: Sequence[tuple[str, nn.Parameter]]) -> tuple[int, tuple[str, ...]]:
    """What steps once in an optimizer step: an optimizer, and under ZeRO one of its parameter groups."""
    return id(optimizer), tuple(name for name, _ in mine)


def _inner(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer of a rank's own parameters within a sharded one, as in ZeroRedundancyOptimizer and in OSS."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, Optimizer) else None


def _once(named: Iterator[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Each parameter under its first name."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in named:
        found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def _rank_and_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    with suppress(KeyError, ValueError):
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1
