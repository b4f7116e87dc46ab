"""The launcher of a run that starts processes: the one that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.errors import ConflictError, UnknownNameError
from stratagem.installed.catalogue import Catalogue
from stratagem.names.index import known_plugins
from stratagem.plugin.component import Component

if TYPE_CHECKING:
    from stratagem.launchers.base import Launcher, LaunchPlan


def make_launcher(catalogue: Catalogue, plan: LaunchPlan) -> Launcher:
    """Make the launcher of a run. It raises the same errors as `installed_launcher`."""
    launcher: Launcher = installed_launcher(catalogue).load()(plan)
    return launcher


def installed_launcher(catalogue: Catalogue) -> Component:
    """Return the launcher that has the highest priority.

    Raises:
        UnknownNameError: none is installed; says what to install.
        BrokenPluginError: the one that is installed is broken.
        ConflictError: two have the same priority.
    """
    found = catalogue.of_kind("launcher")
    if not found:
        for name in known_plugins().of_kind("launcher"):
            try:
                return catalogue.find("launcher", name)
            except UnknownNameError as error:
                raise UnknownNameError(f"this run starts processes: {error}") from None
        raise UnknownNameError(
            "this run starts processes, and no launcher is installed: pip install stratagem"
        )
    for other in found[1:]:
        if other.priority == found[0].priority:
            names = " and ".join(f"{each.name!r} of {each.origin}" for each in (found[0], other))
            raise ConflictError(
                f"launchers {names} both have the priority {other.priority}: leave one out with --disable-plugin, or "
                "uninstall it"
            )
    return found[0]
