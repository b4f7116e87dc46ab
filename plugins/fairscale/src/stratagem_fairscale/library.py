"""Checks whether FairScale is installed, without importing it."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import importlib_metadata

from stratagem import ConfigError
from stratagem_fairscale.plugin import INSTALL, VERSION


def require(strategy: str) -> None:
    """Refuse a run if FairScale isn't installed.

    Args:
        strategy: its name, for the message.

    Raises:
        ConfigError: says what to install.
    """
    if find_spec("fairscale") is None:
        raise ConfigError(
            f"strategy {strategy!r} needs the package fairscale, which isn't installed: {INSTALL}"
        )
    version = importlib_metadata.version("fairscale")
    if version != VERSION:
        warnings.warn(
            f"fairscale {version} is another than this strategy was tried with, {VERSION}: {INSTALL}",
            UserWarning,
            stacklevel=2,
        )
