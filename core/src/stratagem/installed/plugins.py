"""The installed plugins: every entry point in the group `stratagem`, with its components and commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any

import pluggy

from stratagem.installed.entry_points import plugin_entry_points
from stratagem.installed.locked import refuse_unlocked, require_locked
from stratagem.installed.record_cache import Entry, RecordCache
from stratagem.plugin.component import Component
from stratagem.plugin.hookspecs import PROJECT, DiscoveryHooks
from stratagem.plugin.origin import Origin


@dataclass(frozen=True)
class Installed:
    """An installed plugin."""

    origin: Origin
    value: str
    """Its entry point's value, which names its module."""
    components: tuple[Component, ...] = ()
    has_commands: bool = False
    error: BaseException | None = None
    """Why it can't be loaded; None if it can. A broken plugin has neither components nor commands."""

    def add_commands(self, cli: Any) -> None:
        """Add its commands to a click group. It raises the errors of the plugin's `stratagem_commands`."""
        with redirect_stdout(sys.stderr), _hooks_of(_named(self.value)) as hooks:
            hooks.stratagem_commands(cli=cli)


def installed_plugins() -> tuple[Installed, ...]:
    """Return all plugins, in the order of their entry points. Modules are imported if their records aren't cached.

    Raises:
        LockError: the plugins aren't those of the lock file in STRATAGEM_LOCKED. No module has been imported then.
    """
    require_locked()
    return _read()


@lru_cache(maxsize=1)
def _read() -> tuple[Installed, ...]:
    cache = RecordCache()
    entries = cache.read()
    if entries is not None:
        return tuple(map(_from_cache, entries))
    found = tuple(
        _load(Origin(name, version, entry_point.name), entry_point.value)
        for entry_point, name, version in plugin_entry_points()
    )
    cache.write([_entry(plugin) for plugin in found])
    return found


def forget_installed() -> None:
    """Clear caches, so that entry points are read again: after an install in a running process."""
    _read.cache_clear()
    refuse_unlocked.cache_clear()


def command_plugins() -> Iterator[tuple[Origin, Callable[[Any], None]]]:
    """Yield the origin of every plugin with commands, and a function that adds them to a click group.

    The function raises the errors of the plugin's `stratagem_commands`.
    """
    for plugin in installed_plugins():
        if plugin.has_commands:
            yield plugin.origin, plugin.add_commands


def _load(origin: Origin, value: str) -> Installed:
    try:
        # Otherwise a plugin's output would be mixed with the JSON that our commands print.
        with redirect_stdout(sys.stderr), _hooks_of(_named(value)) as hooks:
            answers = hooks.stratagem_components()
            has_commands = bool(hooks.stratagem_commands.get_hookimpls())
        components = [component for answer in answers for component in answer]
        wrong = [component for component in components if not isinstance(component, Component)]
        if wrong:
            raise TypeError(f"stratagem_components returned {wrong[0]!r}, which isn't a Component")
    except (Exception, SystemExit) as error:
        # A vendor library may raise anything at import, and even call sys.exit.
        return Installed(origin, value, error=error)
    return Installed(origin, value, tuple(replace(each, origin=origin) for each in components), has_commands)


def _named(value: str) -> Any:
    """Import the object of an entry point's value: "module", or "module:attribute", perhaps with "[extras]"."""
    module, _, attribute = value.partition("[")[0].replace(" ", "").partition(":")
    found = import_module(module)
    return attrgetter(attribute)(found) if attribute else found


def _entry(plugin: Installed) -> Entry:
    components = plugin.components if plugin.error is None else None
    return Entry(plugin.origin, plugin.value, components, plugin.has_commands)


def _from_cache(entry: Entry) -> Installed:
    if entry.components is None:
        return _load(entry.origin, entry.value)
    return Installed(entry.origin, entry.value, entry.components, entry.has_commands)


@contextmanager
def _hooks_of(module: Any) -> Iterator[Any]:
    """Yield hooks that only this plugin implements, so that other plugins can't break a call."""
    manager = _manager()
    try:
        manager.register(module)
        manager.check_pending()
        yield manager.hook
        manager.unregister(module)
    except BaseException:
        _manager.cache_clear()  # it isn't known which hooks of a broken plugin are registered
        raise


@lru_cache(maxsize=1)
def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoveryHooks)
    return manager
