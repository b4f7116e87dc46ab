"""Activation checkpointing: a module's activations are recomputed in backward instead of kept.

Source: `torch.utils.checkpoint` with `use_reentrant=False`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from stratagem.errors import ConfigError
from stratagem.sdk.torch_private import tensor_version
from stratagem_sharding.class_names import class_name
from stratagem_sharding.torch_private import own_buffers, own_parameters

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Returns two contexts: one for the forward, and one for its recomputation in backward."""

_RUNNING_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Buffers of normalization layers that training writes but doesn't read."""


def recompute_activations(modules: Iterable[nn.Module], contexts: Contexts | None = None) -> None:
    """Let each module keep only its inputs for backward. Names and classes of modules stay as they are.

    Running statistics of normalization layers are updated once per forward, as without recomputation. Recomputation
    draws the same random numbers from torch's generators again, but not from Python's and NumPy's.

    Args:
        modules: the modules, changed in place.
        contexts: `context_fn` of `torch.utils.checkpoint`, such as a selection of operations whose outputs are kept.

    Raises:
        ConfigError: a module's activations are recomputed already. Later, in a forward: the forward changes a buffer
            that is not a running statistic, so that recomputation would give other values.
    """
    for module in modules:
        if isinstance(vars(module).get("forward"), RecomputedForward):
            raise ConfigError(
                f"activations of {class_name(module)} are recomputed twice: name its class in one place, "
                "the strategy's activation_checkpointing_policy or the extension activations"
            )
        # Replace `forward`, not `__call__`: hooks that gather parameters then stay outside of the recomputation.
        # Replace it on the instance, so that other instances of the class are unchanged.
        # patch: replaced forwards
        module.forward = RecomputedForward(module, contexts)


class RecomputedForward:
    """A module's forward that keeps only its inputs for backward.

    An object, not a closure, so that `copy.deepcopy` of the module returns a copy with a forward of its own.
    """

    def __init__(self, module: nn.Module, contexts: Contexts | None) -> None:
        self.original_forward = module.forward
        self._module = module
        self._contexts = contexts

    @property
    def __signature__(self) -> inspect.Signature:
        """Signature of the user's forward, for strategies that look for one of its arguments."""
        return inspect.signature(self.original_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original_forward(*args, **kwargs)
        contexts: dict[str, Any] = {"context_fn": self._guarded_contexts}
        if torch.compiler.is_compiling():
            # torch.compile can't trace our contexts around a forward, and functionalizes buffer changes itself. As
            # context_fn it accepts only functions that return dispatch modes.
            contexts = {} if self._contexts is None else {"context_fn": self._contexts}
        return checkpoint(self.original_forward, *args, use_reentrant=False, **contexts, **kwargs)

    def _guarded_contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first, again = (self._contexts or noop_context_fn)()
        refused = _RefusedChanges(self._module)
        # Our contexts go outside of a selective-checkpoint context, which counts only the forward's operations.
        return _Both(refused, first), _Both(_Again(self._module, refused), again)


class _Both(AbstractContextManager[None]):
    """Two nested contexts. They can be entered again, since a graph may run backward twice."""

    def __init__(self, outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._outer)
            stack.enter_context(self._inner)
            self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)


class _RefusedChanges(AbstractContextManager[None]):
    """Around the first forward: refuses one that changes buffers which it may read.

    Raises:
        ConfigError: names the buffer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters: list[tuple[nn.Module, str, torch.Tensor, tuple[int, bool]]] = []

    def compare_parameters(self) -> None:
        """Refuse a forward that is computed again with other parameters, or with other values of them.

        Torch sees neither: `torch.utils.checkpoint` saves inputs alone.

        Raises:
            ConfigError: names the parameter.
        """
        for owner, name, parameter, before in self._parameters:
            today = own_parameters(owner).get(name)
            if today is not parameter or _state_of(today) != before:
                raise ConfigError(
                    f"{name!r} of {class_name(owner)} was changed, exchanged or frozen between a forward and its "
                    "backward, as by torch.func.functional_call or a step, and recomputing activations would use "
                    f"what it is now: leave {class_name(self._module)} out of the modules whose activations are "
                    "recomputed"
                )

    def __enter__(self) -> None:
        self._parameters = [
            (owner, name, parameter, _state_of(parameter))
            for owner in self._module.modules()
            for name, parameter in own_parameters(owner).items()
            if parameter is not None
        ]
        self._before: list[tuple[nn.Module, str, torch.Tensor, int]] = [
            (owner, name, buffer, tensor_version(buffer))
            for owner in self._module.modules()
            for name, buffer in own_buffers(owner).items()
            if buffer is not None and name not in _RUNNING_STATISTICS
        ]

    def __exit__(self, *error: Any) -> None:
        for owner, name, buffer, version in self._before:
            if own_buffers(owner).get(name) is not buffer or tensor_version(buffer) != version:
                raise ConfigError(
                    f"the forward of {class_name(owner)} changes its buffer {name!r}, and recomputing its "
                    f"activations would change it twice: leave {class_name(self._module)} out of the modules "
                    "whose activations are recomputed"
                )


def _state_of(parameter: torch.Tensor) -> tuple[int, bool]:
    """What a forward that is computed again needs as it was."""
    return tensor_version(parameter), parameter.requires_grad


class _Again(AbstractContextManager[None]):
    """Around the second forward: leaves running statistics as the first forward left them."""

    def __init__(self, module: nn.Module, first: _RefusedChanges) -> None:
        self._module, self._first = module, first

    def __enter__(self) -> None:
        self._first.compare_parameters()
        self._kept = [
            (buffer, buffer.detach().clone())
            for owner in self._module.modules()
            if owner.training
            for name, buffer in own_buffers(owner).items()
            if buffer is not None and name in _RUNNING_STATISTICS
        ]

    def __exit__(self, *error: Any) -> None:
        for buffer, value in self._kept:
            # Through `.data`, which doesn't change the version counter: the graph has saved the buffer, and backward
            # refuses another version.
            buffer.data.copy_(value)
        self._kept = []
