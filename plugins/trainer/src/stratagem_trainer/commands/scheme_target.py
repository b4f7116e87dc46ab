"""`SchemeTarget`: a TARGET whose module, or data, an installed plugin makes, as "hf:gpt2"."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Union

from stratagem_cli.typed import parameters_of

from stratagem.errors import TargetError, UnknownNameError
from stratagem.sdk.catalogue import known_plugins, load_catalogue
from stratagem_trainer.commands.target import Target

Made = Literal["model", "data"]
"""The kinds of component that make what a command needs."""


@dataclass(frozen=True)
class SchemeTarget:
    """A text for the component whose name is the scheme before the colon."""

    kind: Made
    scheme: str
    text: str
    """What comes after the colon: the first argument of the component's class."""

    @property
    def is_file(self) -> bool:
        """Whether it is in a file named by its path."""
        return False

    def __str__(self) -> str:
        return f"{self.scheme}:{self.text}"

    def make_importable(self) -> None:
        """Put the working directory on `sys.path`: settings may name classes in it."""
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())

    def load(self, base: str = "Module") -> Callable[..., Any]:
        """Import the component's class; in a worker.

        Args:
            base: not looked at: who makes the object also checks it.

        Raises:
            BrokenPluginError: it needs a library that isn't installed, or can't be imported.
        """
        self.make_importable()
        made: Callable[..., Any] = load_catalogue().find(self.kind, self.scheme).load()
        return made

    def arguments(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments that the text stands for.

        Args:
            make: what `load` returned.
        """
        return {next(iter(parameters_of(make))): self.text}


AnyTarget = Union[Target, SchemeTarget]


def parse_target(text: str, kind: Made) -> AnyTarget:
    """Check what can be checked without running the user's code.

    Raises:
        TargetError: there is no such file, module or class, and no plugin offers the scheme; or the text is empty.
        ConflictError, ApiVersionError: of the plugin that offers the scheme.
        UnknownNameError: the plugin that offers the scheme isn't installed.
    """
    scheme, colon, rest = text.partition(":")
    catalogue = load_catalogue()
    if not colon or scheme not in catalogue.names(kind):
        try:
            return Target.parse(text)
        except TargetError as error:
            if colon and scheme.isidentifier():
                _refuse_missing_plugin(kind, scheme, error)
            raise
    if not rest.strip():
        raise TargetError(
            f"TARGET {text!r} has nothing after the colon: write it {scheme}:TEXT, as {scheme}:FOLDER"
        )
    catalogue.find(kind, scheme).refuse_missing()
    # Workers may run in other folders, and a run's config.yaml is read from any.
    return SchemeTarget(kind, scheme, os.path.abspath(rest) if os.path.exists(rest) else rest)


def _refuse_missing_plugin(kind: Made, scheme: str, cause: TargetError) -> None:
    """Say what to install for a scheme of a plugin that isn't there."""
    distribution = known_plugins().of_kind(kind).get(scheme)
    if distribution is not None:
        raise UnknownNameError(f"TARGET {scheme}:… isn't available: pip install {distribution}") from cause
