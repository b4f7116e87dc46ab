"""What the flags of a run choose, as far as it is known before the run is assembled. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from stratagem import RunConfig
from stratagem.errors import UsageError
from stratagem.sdk.catalogue import Catalogue, load_catalogue
from stratagem.sdk.selection import choose_environment, requested_size

if TYPE_CHECKING:
    from stratagem import Component, Environment


def strategy_component(selection: Mapping[str, Any]) -> Component | None:
    """Return the strategy's component, with a preset's options; None for "auto".

    Args:
        selection: fields of `RunConfig` that were given.

    Raises:
        UsageError: no installed strategy has the name.
    """
    name = selection.get("strategy", "auto")
    return None if name == "auto" else catalogue(selection).find("strategy", name)


def checkpoint_component(selection: Mapping[str, Any]) -> Component | None:
    """Return the checkpointer's component; None where no installed one has that name.

    Args:
        selection: fields of `RunConfig` that were given.
    """
    try:
        return catalogue(selection).find("checkpoint", selection.get("checkpoint", RunConfig.checkpoint))
    except UsageError:
        return None


def environment_here(selection: Mapping[str, Any]) -> Environment:
    """Return the environment of this process.

    Args:
        selection: fields of `RunConfig` that were given.

    Raises:
        UsageError: no environment has that name, or several recognise the variables.
    """
    size = requested_size(selection.get("devices", "auto"), selection.get("num_nodes", 1))
    wanted = selection.get("environment", "auto")
    return cast("Environment", choose_environment(catalogue(selection), wanted, os.environ, size).value)


def catalogue(selection: Mapping[str, Any]) -> Catalogue:
    """Return what is installed, less what the flags leave out."""
    return load_catalogue(selection.get("only_plugins", ()), selection.get("without_plugins", ()))
