"""The catalogue: every component that the installed distributions offer.

It is built only from entry points, without importing torch or a vendor library. A plugin that can't be loaded is kept
with its error, and doesn't affect others.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from stratagem.errors import ApiVersionError, BrokenPluginError, ConflictError, UnknownNameError, nearest
from stratagem.installed.entry_points import normalise, required_distributions
from stratagem.installed.plugins import installed_plugins
from stratagem.names.index import known_plugins
from stratagem.plugin.axis_choice import AxisChoice, axis_terms, is_expression
from stratagem.plugin.component import API_VERSION, Component, Kind
from stratagem.plugin.origin import BrokenPlugin, Origin

CORE = "stratagem-core"


@dataclass(frozen=True)
class Catalogue:
    """All components, and all broken plugins."""

    components: tuple[Component, ...]
    broken: tuple[BrokenPlugin, ...] = ()
    left_out: tuple[Origin, ...] = ()
    """Plugins that the allow-list or the deny-list excludes."""

    def of_kind(self, kind: Kind) -> list[Component]:
        """Return the components of one kind, highest priority first, then by name."""
        return list(self._of_kind.get(kind, ()))

    @cached_property
    def _of_kind(self) -> dict[Kind, list[Component]]:
        found: dict[Kind, list[Component]] = {}
        for component in sorted(self.components, key=lambda each: (-each.priority, each.name)):
            found.setdefault(component.kind, []).append(component)
        return found

    def find(self, kind: Kind, name: str) -> Component:
        """Look a name up: a component's name, alias or preset, or "distribution:name".

        Returns:
            The component, with the preset's `options` if the name is a preset. For an expression of axes, such as
            "shard=2+tensor=2", the strategy that composes them, with `axes` in its `options`.

        Raises:
            UnknownNameError, ConflictError, ApiVersionError, BrokenPluginError: says what to do.
        """
        if kind == "strategy" and is_expression(name):
            return replace(self._composing(name), options={"axes": self.find_axes(name)})
        distribution, colon, bare = name.rpartition(":")
        if colon and not distribution:
            raise UnknownNameError(
                f"{kind} {name!r} names no distribution before the colon: write {bare!r}, or DISTRIBUTION:{bare}"
            )
        matching = [
            component
            for component in self.of_kind(kind)
            if bare in component.names() and normalise(distribution) in ("", component.origin.distribution)
        ]
        if not matching:
            self._refuse_unknown(kind, name, bare, normalise(distribution))
        if len(matching) > 1:
            origins = sorted((component.origin for component in matching), key=str)
            choices = " or ".join(f"{origin.distribution}:{bare}" for origin in origins)
            owners = " and ".join(map(str, origins))
            raise ConflictError(f"{kind} {bare!r} is offered by {owners}: choose {choices}, or uninstall one")
        (component,) = matching
        _refuse_newer_api(component)
        preset = component.presets.get(bare)
        return component if preset is None else replace(component, options=preset)

    def find_axes(self, expression: str) -> tuple[AxisChoice, ...]:
        """Look up the axes of an expression, such as "shard=2+tensor=2".

        Raises:
            ConfigError: a term isn't NAME=SIZE.
            UnknownNameError, ConflictError, ApiVersionError, BrokenPluginError: as `find`.
        """
        return tuple(AxisChoice(self.find("axis", name), size) for name, size in axis_terms(expression))

    def _composing(self, expression: str) -> Component:
        """Return the strategy that composes axes, the one with the highest priority."""
        for component in self.of_kind("strategy"):
            if component.composes_axes:
                _refuse_newer_api(component)
                return component
        raise UnknownNameError(
            f"strategy {expression!r} is an expression of axes, and no installed strategy composes axes: "
            "pip install 'stratagem[all]'"
        )

    def _refuse_unknown(self, kind: Kind, name: str, bare: str, distribution: str) -> None:
        offered = known_plugins().of_kind(kind)
        sources = {bare, normalise(bare), distribution, offered.get(bare, "")}
        for broken in self.broken:
            if sources & {broken.origin.entry_point, broken.origin.distribution}:
                raise BrokenPluginError(
                    f"{kind} {name!r} comes with {broken.origin}, which can't be loaded: "
                    f"{type(broken.error).__name__}: {broken.error}; fix or uninstall it"
                ) from broken.error
        for origin in self.left_out:
            if sources & {origin.entry_point, origin.distribution}:
                raise UnknownNameError(
                    f"{kind} {name!r} comes with {origin}, which is installed but left out: "
                    "see --disable-plugin, STRATAGEM_DISABLE_PLUGINS and STRATAGEM_PLUGINS"
                )
        known = self.names(kind)
        if renamed := known_plugins().renamed({_SETTINGS.get(kind, kind): name}):
            raise UnknownNameError(renamed)
        if bare in offered and bare not in known:
            raise UnknownNameError(f"{kind} {name!r} isn't installed: pip install {offered[bare]}")
        near = difflib.get_close_matches(bare, sorted({*known, *offered}), n=3)
        message = f"no {kind} is called {name!r}"
        if near:
            message += f"; nearest: {', '.join(near)}"
        elif kind not in _LISTED:
            message += f"; installed: {', '.join(known) or 'none'}"
        elif not known:
            message += "; none is installed"
        if self.broken:
            message += f"; not loaded, since broken: {', '.join(str(each.origin) for each in self.broken)}"
        needed = sorted({offered[other] for other in near if other in offered and other not in known})
        if needed:
            message += f"; to get {'it' if len(near) == 1 else 'all of them'}: pip install {' '.join(needed)}"
        elif kind in _LISTED:
            message += f"; `stratagem {_plural(kind)}` lists them"
        raise UnknownNameError(message)

    def names(self, kind: Kind) -> list[str]:
        """Return all names that `find` knows for a kind."""
        return sorted({name for component in self.of_kind(kind) for name in component.names()})

    @cached_property
    def distributions(self) -> dict[str, str]:
        """Distribution → version of everything in the catalogue."""
        return {component.origin.distribution: component.origin.version for component in self.components}


_SETTINGS = {"extension": "plugins"}
"""Kind → the argument of a run that names such a component, if it isn't called like the kind."""
_LISTED = ("strategy", "accelerator", "place")


def _plural(kind: str) -> str:
    return "strategies" if kind == "strategy" else f"{kind}s"


def load_catalogue(only: Sequence[str] = (), without: Sequence[str] = ()) -> Catalogue:
    """Read the entry points of all installed distributions.

    Args:
        only: names of distributions or entry points to consider in addition to the core. The plugins on which these
            distributions depend are considered, too. Empty means all.
        without: names of distributions or entry points to leave out.

    Raises:
        UnknownNameError: a name in `only` or `without` isn't that of an installed plugin.

    The variables STRATAGEM_PLUGINS and STRATAGEM_DISABLE_PLUGINS (names separated by commas) add to
    the two.
    """
    allowed = frozenset(_normalised([*only, *_listed_in("STRATAGEM_PLUGINS")]))
    denied = frozenset(_normalised([*without, *_listed_in("STRATAGEM_DISABLE_PLUGINS")]))
    _refuse_unmatched("--plugin", only)
    _refuse_unmatched("--disable-plugin", without)
    components: list[Component] = []
    broken: list[BrokenPlugin] = []
    left_out: list[Origin] = []
    if allowed:
        allowed |= _required_by(allowed)
    for plugin in installed_plugins():
        names = set(_names_of(plugin.origin))
        if plugin.origin.distribution != CORE and (names & denied or (allowed and not names & allowed)):
            left_out.append(plugin.origin)
        elif plugin.error is not None:
            broken.append(BrokenPlugin(plugin.origin, plugin.error))
        else:
            components += plugin.components
    return Catalogue(tuple(components), tuple(broken), tuple(left_out))


def _required_by(names: Set[str]) -> set[str]:
    """Return the distributions with plugins on which those with these names depend."""
    origins = [plugin.origin for plugin in installed_plugins()]
    installed = {origin.distribution for origin in origins}
    required: set[str] = set()
    pending = {origin.distribution for origin in origins if names & set(_names_of(origin))}
    while pending:
        needed = (set(required_distributions(pending.pop())) & installed) - required
        pending |= needed
        required |= needed
    return required


def _names_of(origin: Origin) -> list[str]:
    return [origin.distribution, normalise(origin.entry_point)]  # the distribution's is normalised already


def _refuse_unmatched(flag: str, names: Sequence[str]) -> None:
    """Refuse names that aren't installed: a misspelled name would silently have no effect."""
    if not names:
        return
    origins = [plugin.origin for plugin in installed_plugins()]
    known = {name for origin in origins for name in _names_of(origin)}
    for name in names:
        if normalise(name) not in known:
            hint = nearest(
                normalise(name), sorted(known), "`stratagem plugins` lists those that are installed"
            )
            raise UnknownNameError(f"{flag} {name}: no plugin of that name is installed; {hint}")


def _refuse_newer_api(component: Component) -> None:
    if component.api_version > API_VERSION:
        raise ApiVersionError(
            f"{component.kind} {component.name!r} of {component.origin} was written for plugin API "
            f"{component.api_version}, and this core has {API_VERSION}: upgrade {CORE}, or install "
            f"an older {component.origin.distribution}"
        )


def _listed_in(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def _normalised(names: Iterable[str]) -> list[str]:
    return [normalise(name) for name in names]
