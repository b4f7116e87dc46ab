"""What is installed: every entry point in the group `stratagem`, and what its module says."""

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
    """A plugin that is installed."""

    origin: Origin
    value: str
    """Its entry point's value: where its module is."""
    components: tuple[Component, ...] = ()
    has_commands: bool = False
    error: BaseException | None = None
    """Why it can't be loaded; it has neither components nor commands then."""

    def add_commands(self, cli: Any) -> None:
        """Let it add its commands to a click group; raises whatever its `stratagem_commands` raises."""
        with redirect_stdout(sys.stderr), _hooks_of(_named(self.value)) as hooks:
            hooks.stratagem_commands(cli=cli)


def installed_plugins() -> tuple[Installed, ...]:
    """All plugins, in the order of their entry points; modules are imported where no records are cached.

    Raises:
        LockError: they aren't those of the lock file that STRATAGEM_LOCKED names; no module has been imported then.
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
    """Read the entry points again at the next look: after an install in a running process."""
    _read.cache_clear()
    refuse_unlocked.cache_clear()


def command_plugins() -> Iterator[tuple[Origin, Callable[[Any], None]]]:
    """Yield, for every plugin with commands, what lets it add them to a click group.

    That raises whatever the plugin's `stratagem_commands` raises.
    """
    for plugin in installed_plugins():
        if plugin.has_commands:
            yield plugin.origin, plugin.add_commands


def _load(origin: Origin, value: str) -> Installed:
    try:
        # What a plugin prints would stand in the JSON that a command of ours prints.
        with redirect_stdout(sys.stderr), _hooks_of(_named(value)) as hooks:
            answers = hooks.stratagem_components()
            has_commands = bool(hooks.stratagem_commands.get_hookimpls())
        components = [component for answer in answers for component in answer]
        wrong = [component for component in components if not isinstance(component, Component)]
        if wrong:
            raise TypeError(f"stratagem_components returned {wrong[0]!r}, which is no Component")
    except (Exception, SystemExit) as error:
        # A vendor library may raise anything at import, and even call sys.exit.
        return Installed(origin, value, error=error)
    return Installed(origin, value, tuple(replace(each, origin=origin) for each in components), has_commands)


def _named(value: str) -> Any:
    """Import what an entry point's value names: "module", or "module:attribute", perhaps with "[extras]"."""
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
    """Hooks that one plugin alone implements: a call can't be broken by another."""
    manager = _manager()
    try:
        manager.register(module)
        manager.check_pending()
        yield manager.hook
        manager.unregister(module)
    except BaseException:
        _manager.cache_clear()  # what of a broken plugin has been registered is unknown
        raise


@lru_cache(maxsize=1)
def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoveryHooks)
    return manager
