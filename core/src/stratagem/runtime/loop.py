"""The drop-in module and optimizers that `Runtime.setup` returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem.runtime.methods import without_layers
from stratagem.runtime.prepared_optimizer import PreparedOptimizer
from stratagem.strategies.stepping import drop_gradients

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from stratagem.runtime.accumulation import Accumulation
    from stratagem.runtime.session import Session
    from stratagem.strategies.prepared import Prepared


_CONTAINER_METHODS = (
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__len__",
    "__iter__",
    "__contains__",
    "__reversed__",
)
"""Python looks these up on an object's class, without calling `__getattr__`."""


class PreparedModule(nn.Module):
    """The user's module, called through the strategy and the precision.

    Parameters and `state_dict` have the names of the user's module. Other attributes are read from it and set on it.

    Args:
        prepared: the prepared module.
        methods: names of methods that are called through the strategy's `MethodModule`; empty if it has none. Other
            methods must not call layers.
        advice: what to do about another method that calls layers, for the error message.
    """

    def __new__(cls, prepared: Prepared, *args: Any, **kwargs: Any) -> PreparedModule:
        """Create the object. If the user's module is a container, it can be indexed and iterated over, too."""
        kind = type(prepared.original_module)
        forwarded = {name: _forwarded(name) for name in _CONTAINER_METHODS if hasattr(kind, name)}
        made: PreparedModule = super().__new__(type(cls.__name__, (cls,), forwarded) if forwarded else cls)
        return made

    def __init__(
        self,
        prepared: Prepared,
        methods: Collection[str] = (),
        advice: str = "set the module up with forward_methods=[{!r}], or call the module itself",
    ) -> None:
        super().__init__()
        self.original_module = prepared.original_module
        self._methods, self._advice = methods, advice
        self.prepared: Prepared = prepared

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._methods:
            args = ("forward", *args)
        return (self.prepared.forward if self.training else self.prepared.evaluate)(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module.named_modules(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.original_module.zero_grad(set_to_none)
        # A strategy may keep gradients elsewhere until it reduces them.
        for index in range(len(self.prepared.optimizers)):
            drop_gradients(self.prepared, index, set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module.load_state_dict(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = "prepared" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name)
        super().__setattr__(name, value) if is_own else setattr(self.original_module, name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = super().__getattr__("original_module")
        value = getattr(module, name)
        if getattr(value, "__self__", None) is not module:
            return value
        if name in self._methods:
            through = self.prepared.forward if self.training else self.prepared.evaluate
            return wraps(value)(partial(through, name))
        return without_layers(value, self._advice.format(name))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.prepared.copy_module(memo)


def _forwarded(name: str) -> Callable[..., Any]:
    def forwarded(self: PreparedModule, *args: Any) -> Any:
        return getattr(self.original_module, name)(*args)

    return forwarded


def optimizers_for(
    module: nn.Module, optimizers: Sequence[Optimizer | Callable[[nn.Module], Optimizer]]
) -> Callable[[], list[Optimizer]]:
    """Return a function that makes the optimizers. A strategy calls it when parameters are final.

    In the user's optimizers, it replaces parameters by those that now have the same names. It calls the user's
    functions with the module.
    """
    if not isinstance(module, nn.Module) or isinstance(module, PreparedModule):
        raise ConfigError(f"setup got {_kind_of(module)} first: give your module, and then its optimizers")
    for each in optimizers:
        if not isinstance(each, Optimizer) and not callable(each):
            said = "give optimizers one by one, or functions that make one of the module; schedulers stay as they are"
            raise ConfigError(f"setup got {_kind_of(each)} for an optimizer: {said}")
    names = {id(parameter): name for name, parameter in module.named_parameters()}

    def make() -> list[Optimizer]:
        current = dict(module.named_parameters())
        made = []
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                made.append(optimizer(module))
                continue
            for group in optimizer.param_groups:
                # In place: LBFGS keeps a reference to the list, and would step the old parameters.
                group["params"][:] = [current[names[id(p)]] if id(p) in names else p for p in group["params"]]
            made.append(optimizer)
        return made

    return make


def _kind_of(value: Any) -> str:
    return (
        f"the class {value.__qualname__}"
        if isinstance(value, type)
        else f"an object of {type(value).__name__}"
    )


def wrap(
    prepared: Prepared,
    given: nn.Module,
    session: Session,
    methods: Collection[str] = (),
    accumulation: Accumulation | None = None,
) -> tuple[nn.Module, list[Optimizer]]:
    """Return the module and the optimizers for the user's own training loop: wrapped only if they have to be."""
    is_module = prepared.module is given and prepared.forwards_directly
    wrapped = prepared.original_module if is_module else PreparedModule(prepared, methods)
    # A wrapper gives such an optimizer the mean if losses are sums.
    evaluates = any(map(_evaluates_loss, prepared.optimizers))
    # The user's optimizers are enough if nothing is to be done around a step: no reduction or comparison with other
    # ranks, no poll of a save in the background, and no step to hold back.
    if (
        prepared.steps_directly
        and session.steps_alone
        and not session.checkpointer.is_async
        and not evaluates
        and accumulation is None
    ):
        prepared.loss_weights.watches_steps = True
        return wrapped, list(prepared.optimizers)
    return wrapped, [
        PreparedOptimizer(prepared, index, session, accumulation) for index in range(len(prepared.optimizers))
    ]


def _evaluates_loss(optimizer: Optimizer) -> bool:
    """Whether an optimizer can't step without a closure. LBFGS can't, for example: its step depends on the loss."""
    closure = signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


class AutocastCheck:
    """A forward pre-hook of the user's module. It refuses forwards in training that aren't under autocast.

    It can be pickled and copied with the module. It does nothing in a copy.

    Args:
        module: the user's module.
        device_type: of the autocast region.
    """

    def __init__(self, module: nn.Module, device_type: str) -> None:
        self._module_id, self._device_type = id(module), device_type

    def __call__(self, module: nn.Module, args: Any) -> None:
        if (
            torch.is_grad_enabled()
            and module.training
            and id(module) == self._module_id
            and not torch.is_autocast_enabled(self._device_type)
        ):
            raise ConfigError(
                "the module that setup() got was called without the run's precision, which would compute in full "
                "precision: call the module that setup() returned, or call it within runtime.autocast()"
            )


def check_autocast(prepared: Prepared) -> RemovableHandle | None:
    """Add an `AutocastCheck` to the user's module, if it is trained and the run's precision uses autocast."""
    context = prepared.precision.autocast()
    if not isinstance(context, torch.autocast) or not prepared.optimizers:
        return None
    module = prepared.original_module
    return module.register_forward_pre_hook(AutocastCheck(module, prepared.device.type))


def prepared_of(everything: Sequence[Prepared], module: nn.Module | None) -> Prepared:
    """Return the item of `everything` for `module`, the user's or its wrapper; the only item for None."""
    if module is None and len(everything) == 1:
        return everything[0]
    wrapped = module.prepared if isinstance(module, PreparedModule) else None
    for prepared in everything:
        if prepared is wrapped or prepared.original_module is module:
            return prepared
    raise ConfigError(
        f"{len(everything)} modules were set up: pass the module that setup() returned"
        if everything
        else "no module was set up: call setup() first"
    )


def is_of(everything: Sequence[Prepared], value: Any) -> bool:
    """Whether a value is a module or an optimizer of `everything`, the user's or its wrapper."""
    if isinstance(value, (PreparedModule, PreparedOptimizer)):
        return value.prepared in everything
    return any(value is own for each in everything for own in (each.original_module, *each.optimizers))


def named(everything: Sequence[Prepared], state: Mapping[str, Any]) -> dict[str, Prepared]:
    """Return what was set up, by name: its module's key in `state`, or else its index; "" for a single module."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"state is {_kind_of(state)}: give a dict of what to keep, by name")
    if len(everything) < 2:
        return {"": prepared_of(everything, None)}
    names = {str(place): each for place, each in enumerate(everything)}
    for key, value in state.items():
        if isinstance(value, nn.Module) and key.isidentifier() and is_of(everything, value):
            found = prepared_of(everything, value)
            names = {key if each is found else name: each for name, each in names.items()}
    return names


def prepared_of_optimizer(everything: Sequence[Prepared], optimizer: Optimizer) -> tuple[Prepared, int]:
    """Return the item of `everything` that has `optimizer`, and the optimizer's index there."""
    if isinstance(optimizer, PreparedOptimizer):
        return optimizer.prepared, optimizer.index
    for prepared in everything:
        for index, candidate in enumerate(prepared.optimizers):
            if candidate is optimizer:
                return prepared, index
    raise ConfigError("got an optimizer that wasn't set up: pass one that setup() returned")
