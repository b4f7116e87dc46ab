"""The hooks of modules and callbacks, when each is called, and the object that calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from stratagem import Prepared


class Hook(NamedTuple):
    """A hook of modules, of callbacks, or of both."""

    name: str
    arguments: tuple[str, ...]
    """Arguments of a module's hook. A callback's hook gets the trainer and the module before them."""
    owners: str
    """"both", "module" or "callback"."""
    when: str


def _evaluation(stage: str, what: str) -> tuple[Hook, ...]:
    batch = ("batch", "batch_idx")
    return (
        Hook(f"on_{stage}_start", (), "both", f"before {what}"),
        Hook(f"on_{stage}_epoch_start", (), "both", f"before the first batch of {what}"),
        Hook(
            f"on_{stage}_batch_start", batch, "both", "before the step of a batch; the batch is on the device"
        ),
        Hook(f"on_{stage}_batch_end", ("outputs", *batch), "both", "after the step of a batch"),
        Hook(
            f"on_{stage}_epoch_end",
            (),
            "both",
            f"after the last batch of {what}; values of all of it can be logged",
        ),
        Hook(f"on_{stage}_end", (), "both", f"after {what}; its metrics have been reduced over ranks"),
    )


TABLE: tuple[Hook, ...] = (
    Hook(
        "prepare_data",
        (),
        "module",
        "once per node, before `setup`, to download data; don't keep anything in the module",
    ),
    Hook(
        "setup",
        ("stage",),
        "both",
        'on every rank, before `configure_model`; "fit", "validate", "test" or "predict"',
    ),
    Hook("on_start", ("stage",), "callback", "before the first batch of any stage"),
    Hook("on_fit_start", (), "both", "before a fit's first batch"),
    Hook("on_sanity_check_start", (), "callback", "before a fit's sanity check"),
    Hook(
        "on_sanity_check_end",
        (),
        "callback",
        "after a fit's sanity check, which also calls the hooks of a validation",
    ),
    Hook("on_train_start", (), "both", "before the first epoch"),
    Hook("on_train_epoch_start", (), "both", "before the first batch of an epoch"),
    Hook(
        "on_before_batch_transfer",
        ("batch", "dataloader_idx"),
        "module",
        "gets each batch of a loader; returns the batch to move",
    ),
    Hook(
        "transfer_batch_to_device",
        ("batch", "device", "dataloader_idx"),
        "module",
        "moves the batch to the device; returns it",
    ),
    Hook(
        "on_after_batch_transfer",
        ("batch", "dataloader_idx"),
        "module",
        "gets the batch on the device; returns the batch for the step",
    ),
    Hook(
        "on_train_batch_start",
        ("batch", "batch_idx"),
        "both",
        "before a micro-batch's forward; -1 ends the epoch",
    ),
    Hook("on_before_backward", ("loss",), "both", "after `training_step`, before backward"),
    Hook(
        "on_after_backward", (), "both", "after backward; under some strategies gradients aren't reduced yet"
    ),
    Hook(
        "optimizer_step",
        ("epoch", "batch_idx", "optimizer", "optimizer_closure"),
        "module",
        "steps an optimizer, whose `step` also calls the hooks up to `configure_gradient_clipping`",
    ),
    Hook("on_before_optimizer_step", ("optimizer",), "both", "before an optimizer's gradients are clipped"),
    Hook(
        "configure_gradient_clipping",
        ("optimizer", "gradient_clip_val", "gradient_clip_algorithm"),
        "module",
        "clips an optimizer's gradients, after they are reduced and unscaled",
    ),
    Hook(
        "on_before_zero_grad",
        ("optimizer",),
        "both",
        "after an optimizer's step, before its gradients are dropped",
    ),
    Hook(
        "optimizer_zero_grad",
        ("epoch", "batch_idx", "optimizer"),
        "module",
        "drops an optimizer's gradients",
    ),
    Hook(
        "lr_scheduler_step",
        ("scheduler", "metric"),
        "module",
        "steps a scheduler that is due; at an epoch's end, after the validation",
    ),
    Hook(
        "on_train_batch_end",
        ("outputs", "batch", "batch_idx"),
        "both",
        'after backward, and after the step if it ends a window; `outputs` has "loss" and the step\'s other outputs',
    ),
    Hook("on_evaluation_start", ("stage",), "callback", "before the first batch of any evaluation"),
    *_evaluation("validation", "a validation"),
    *_evaluation("test", "a test"),
    *_evaluation("predict", "a prediction"),
    Hook(
        "on_evaluation_batch_end",
        ("outputs", "batch", "batch_idx", "stage"),
        "callback",
        "after a batch of any evaluation",
    ),
    Hook("on_evaluation_end", ("stage",), "callback", "after any evaluation"),
    Hook("on_train_epoch_end", (), "both", "after an epoch's last batch and its validation"),
    Hook("on_train_end", (), "both", "after the last epoch"),
    Hook("on_fit_end", (), "both", "after a fit"),
    Hook("on_end", ("stage",), "callback", "after the last batch of any stage"),
    Hook(
        "on_save_checkpoint",
        ("state",),
        "both",
        "before a checkpoint is written; what rank 0 adds to `state` is saved",
    ),
    Hook(
        "on_load_checkpoint",
        ("state",),
        "both",
        "when a checkpoint is loaded, also for an evaluation; `state` has what was added",
    ),
    Hook(
        "on_exception",
        ("error",),
        "callback",
        "when an error ends a stage; don't call collectives: ranks may be at different points",
    ),
    Hook("teardown", ("stage",), "both", "at the end of a stage, unless an error ended it"),
)
"""All hooks, in the order of their first calls."""

OF_CALLBACKS: tuple[str, ...] = tuple(hook.name for hook in TABLE if hook.owners != "module")
OF_MODULES: tuple[str, ...] = tuple(hook.name for hook in TABLE if hook.owners != "callback")


class HookRunner:
    """The overridden methods for each hook: first those of the callbacks, then the module's.

    Args:
        callbacks: in order; those with a higher `order` are called later.
        trainer: the first argument of callbacks' hooks.
        module: the second argument of callbacks' hooks.
        bases: the base classes of callbacks and of modules, whose own hooks do nothing.
        of_data: hook → the data module's method, which is called in place of the module's.
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        trainer: Any,
        module: Any,
        bases: tuple[type, type],
        of_data: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self._module = module
        callback_base, module_base = bases
        self._of_callbacks: dict[str, list[Callable[..., Any]]] = {name: [] for name in OF_CALLBACKS}
        self._judges_epochs: list[bool] = []
        for callback in self.callbacks:
            for name in overridden(callback, OF_CALLBACKS, callback_base):
                self._of_callbacks[name].append(partial(getattr(callback, name), trainer, module))
                if name == "on_train_epoch_end":
                    self._judges_epochs.append(callback.judges_epochs)
        self._of_module: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(module, name)] for name in overridden(module, OF_MODULES, module_base)
        }
        for name, method in (of_data or {}).items():
            self._of_module[name] = [method]

    def wrap(self, wrapper: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace each method by the result of `wrapper`.

        Args:
            wrapper: called with a name such as "EarlyStopping.on_train_end" and the method; returns a method.
        """
        for methods in (self._of_callbacks, self._of_module):
            for name, kept in methods.items():
                methods[name] = [wrapper(f"{_owner(method)}.{name}", method) for method in kept]

    def of(self, name: str) -> list[Callable[..., Any]]:
        """Return the methods to call for a hook. The trainer and the module are already bound."""
        return [*self._of_callbacks.get(name, ()), *self._of_module.get(name, ())]

    def method_of_module(self, name: str) -> Callable[..., Any]:
        """Return the module's method of this name, overridden or not."""
        own = self._of_module.get(name)
        method: Callable[..., Any] = own[0] if own else getattr(self._module, name)
        return method

    def __call__(self, name: str, *args: Any) -> None:
        for method in self.of(name):
            method(*args)

    def of_callbacks(self, name: str, *args: Any) -> None:
        """Call a hook of the callbacks only."""
        for method in self._of_callbacks[name]:
            method(*args)

    def end_epoch(self, judging: bool) -> None:
        """Call `on_train_epoch_end` of the callbacks with `judges_epochs`, or only of those without."""
        for method, judges in zip(self._of_callbacks["on_train_epoch_end"], self._judges_epochs):
            if judges == judging:
                method()

    def of_module(self, name: str, *args: Any) -> None:
        """Call a hook of the module only."""
        for method in self._of_module.get(name, ()):
            method(*args)


def _owner(method: Any) -> str:
    function = getattr(method, "func", method)
    owner = getattr(function, "__self__", None)
    # LambdaCallback sets functions on the object. Such a function has no __self__.
    return type(function if owner is None else owner).__qualname__


def tell_before_step(
    methods: Iterable[Callable[..., Any]], prepared: Prepared, index: int, *, has_gradients: bool
) -> None:
    """Call `on_before_optimizer_step` with gradients that a precision's loss scale is divided out of.

    Args:
        methods: the hooks to call.
        prepared: has the optimizer.
        index: index of the optimizer.
        has_gradients: False if the optimizer calls a closure, so that there are no gradients yet.
    """
    optimizer = prepared.optimizers[index]
    if has_gradients:
        prepared.precision.unscale(optimizer)
    for method in methods:
        method(optimizer)


def overrides(owner: Any, name: str, base: type) -> bool:
    """Return whether an object, or its class, overrides a method of the base class."""
    return bool(overridden(owner, (name,), base))


def overridden(owner: Any, names: Iterable[str], base: type) -> list[str]:
    """Return those of `names` that an object, or its class, overrides."""
    own, kind = vars(owner), type(owner)
    return [name for name in names if name in own or getattr(kind, name) is not getattr(base, name)]
