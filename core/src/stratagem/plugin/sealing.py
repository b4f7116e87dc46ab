"""`Hooks`: the sealed hooks of one run, with one typed method per hook."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import pluggy

from stratagem.errors import (
    DoubleAnswerError,
    HookArgumentError,
    LostMarkerError,
    NoneAnswerError,
    UnknownHookError,
    WrongAnswerError,
)
from stratagem.plugin.component import imported
from stratagem.plugin.hookspecs import PROJECT, RUN_HOOKS, RunHooks

if TYPE_CHECKING:
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.collectives.base import Collectives
    from stratagem.launchers.base import Launcher
    from stratagem.plugin import requests
    from stratagem.precision.base import Precision
    from stratagem.strategies.prepared import Prepared

MARKER = f"{PROJECT}_impl"


class Hooks:
    """Hooks of a run. They are checked in the constructor, and don't change afterwards.

    Args:
        defaults: implements every hook, for those that no plugin implements.
        plugins: (name, object) of the selected components and the user's own plugins, in order.
        protocols: hook name → "module:Class" of its results. The results of other hooks aren't checked.

    Raises:
        UnknownHookError: a plugin marks a method that isn't a hook.
        HookArgumentError: an implementation takes something other than `request`.
        LostMarkerError: a plugin implements no hook, or overrides an implementation without `@hookimpl`.
        DoubleAnswerError: two plugins implement the same hook (wrappers don't count).

    A method raises NoneAnswerError or WrongAnswerError if its result isn't of the hook's protocol.
    """

    def __init__(
        self,
        defaults: object,
        plugins: Sequence[tuple[str, object]],
        protocols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._protocols = protocols
        self._manager = _RunManager(PROJECT)
        self._manager.add_hookspecs(RunHooks)
        self._manager.register(defaults, name="defaults")
        for index, (name, plugin) in enumerate(plugins):
            _refuse_lost_markers(name, plugin)
            _refuse_wrong_arguments(name, plugin)
            taken = self._manager.has_plugin(name)  # several objects of one class
            self._manager.register(plugin, name=f"{name} ({index})" if taken else name)
        _refuse_unknown_hooks(self._manager)
        for name, plugin in plugins:
            if not self._manager.get_hookcallers(plugin):
                _refuse_without_hooks(name, plugin)
        self.answered_by: dict[str, str] = {}
        """Hook name → name of the plugin that implements it."""
        self._callers: dict[str, Any] = {}
        for hook in RUN_HOOKS:
            answering = [name for name in _answering(self._manager, hook) if name != "defaults"]
            if len(answering) > 1:
                raise DoubleAnswerError(
                    f"hook {hook!r} is answered by {answering[0]!r} and by {answering[1]!r}: "
                    "leave one out, or make one of them a wrapper with @hookimpl(wrapper=True)"
                )
            # pluggy calls the next implementation of a firstresult hook if one returns None. Without this, the
            # default would run, too, after the plugin has acted.
            removed = [defaults] if answering else []
            self._callers[hook] = self._manager.subset_hook_caller(hook, remove_plugins=removed)
            self.answered_by[hook] = answering[0] if answering else "defaults"

    def launch(self, request: requests.LaunchRequest) -> Launcher:
        return cast("Launcher", self._ask("launch", request))

    def reduce(self, request: requests.ReduceRequest) -> Collectives:
        return cast("Collectives", self._ask("reduce", request))

    def precision(self, request: requests.PrecisionRequest) -> Precision:
        return cast("Precision", self._ask("precision", request))

    def setup(self, request: requests.SetupRequest) -> Prepared:
        return cast("Prepared", self._ask("setup", request))

    def checkpoint(self, request: requests.CheckpointRequest) -> Checkpointer:
        return cast("Checkpointer", self._ask("checkpoint", request))

    def _ask(self, hook: str, request: object) -> object:
        answer = self._callers[hook](request=request)
        protocol = imported(self._protocols.get(hook, "builtins:object"))
        if answer is None:
            raise NoneAnswerError(
                f"hook {hook!r} was answered with None by {self._all_who_answer(hook)}: return the object that the "
                "hook's documentation names"
            )
        if not isinstance(answer, protocol):
            raise WrongAnswerError(
                f"hook {hook!r} was answered with an object of {type(answer).__qualname__} by "
                f"{self._all_who_answer(hook)}: return one of stratagem.{protocol.__name__}"
            )
        return answer

    def _all_who_answer(self, hook: str) -> str:
        implementations = getattr(self._manager.hook, hook).get_hookimpls()
        wrappers = [repr(impl.plugin_name) for impl in implementations if impl.wrapper or impl.hookwrapper]
        answering = repr(self.answered_by[hook])
        return f"{answering}, or by what wraps it ({', '.join(wrappers)})" if wrappers else answering


def has_hooks(plugin: object) -> bool:
    """Whether a class or an object has a method with the name or the mark of a hook. Doesn't run any code of it."""
    if any(callable(inspect.getattr_static(plugin, hook, None)) for hook in RUN_HOOKS):
        return True
    return any(hasattr(inspect.getattr_static(plugin, name, None), MARKER) for name in dir(plugin))


class _RunManager(pluggy.PluginManager):
    """A plugin manager that doesn't evaluate properties of the plugins that it registers."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        if isinstance(inspect.getattr_static(plugin, name, None), property):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _answering(manager: pluggy.PluginManager, hook: str) -> list[str]:
    implementations = getattr(manager.hook, hook).get_hookimpls()
    return [impl.plugin_name for impl in implementations if not (impl.wrapper or impl.hookwrapper)]


def _refuse_lost_markers(name: str, plugin: object) -> None:
    for hook in RUN_HOOKS:
        definitions = [vars(cls)[hook] for cls in type(plugin).__mro__ if hook in vars(cls)]
        marked = [hasattr(definition, MARKER) for definition in definitions]
        if any(marked) and not marked[0]:
            is_new = list(inspect.signature(getattr(plugin, hook)).parameters) == ["request"]
            form = (
                ""
                if is_new
                else f", and write it as {hook}(self, request), which returns what the hook asks for"
            )
            raise LostMarkerError(
                f"{type(plugin).__qualname__}.{hook} of {name!r} overrides an implementation of the hook "
                f"{hook!r} without @hookimpl, so it would never be called: mark it{form}"
            )


def _refuse_without_hooks(name: str, plugin: object) -> None:
    unmarked = [hook for hook in RUN_HOOKS if callable(inspect.getattr_static(plugin, hook, None))]
    why = (
        f"mark its method {unmarked[0]!r} with @hookimpl" if unmarked else f"the hooks are {list(RUN_HOOKS)}"
    )
    raise LostMarkerError(
        f"the plugin {name!r} implements no hook, so it would never be called: {why}; a callback goes to "
        "callbacks=, a logger to logger=, a strategy to strategy="
    )


def _refuse_wrong_arguments(name: str, plugin: object) -> None:
    for hook in RUN_HOOKS:
        implementation = inspect.getattr_static(plugin, hook, None)
        if not hasattr(implementation, MARKER):
            continue
        parameters = inspect.signature(getattr(plugin, hook)).parameters
        # pluggy never passes a value to a parameter that has a default.
        if any(p.name != "request" or p.default is not p.empty for p in parameters.values()):
            taken = ", ".join(map(str, parameters.values()))
            raise HookArgumentError(
                f"{type(plugin).__qualname__}.{hook} of {name!r} takes ({taken}), but a hook passes one "
                "argument, `request`, which must have no default"
            )


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        names = [name for name in vars(manager.hook) if not name.startswith("_") and name not in RUN_HOOKS]
        near = {match for name in names for match in difflib.get_close_matches(name, RUN_HOOKS)}
        meant = f"; did you mean {sorted(near)}?" if near else ""
        raise UnknownHookError(
            f"{error.plugin.__class__.__qualname__} implements {names}, but the hooks are "
            f"{list(RUN_HOOKS)}{meant}"
        ) from error
