"""`SchemeTarget`: a TARGET such as "hf:gpt2", from which an installed plugin makes the module or the data."""

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

TargetKind = Literal["model", "data"]
"""Kinds of components that make a command's module or data."""


@dataclass(frozen=True)
class SchemeTarget:
    """A text for the component that is named before the colon."""

    kind: TargetKind
    scheme: str
    text: str
    """The text after the colon. It is the first argument of the component's class."""

    @property
    def is_file(self) -> bool:
        """Whether it is a path of a file with code."""
        return False

    def __str__(self) -> str:
        return f"{self.scheme}:{self.text}"

    def make_importable(self) -> None:
        """Put the working directory on `sys.path`, because settings may name classes there."""
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())

    def load(self, base: str = "Module") -> Callable[..., Any]:
        """Import the component's class. Called in a worker.

        Args:
            base: not used; the caller checks the object that is made.

        Raises:
            BrokenPluginError: the class needs a library that isn't installed, or can't be imported.
        """
        self.make_importable()
        made: Callable[..., Any] = load_catalogue().find(self.kind, self.scheme).load()
        return made

    def arguments(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments that the target's text contains.

        Args:
            make: what `load` returned.
        """
        return {next(iter(parameters_of(make))): self.text}


AnyTarget = Union[Target, SchemeTarget]


def parse_target(text: str, kind: TargetKind) -> AnyTarget:
    """Check a target as far as possible without running the user's code.

    Raises:
        TargetError: there is no such file, module or class, and no plugin has the scheme; or the text is empty.
        ConflictError, ApiVersionError: the plugin that has the scheme can't be used.
        UnknownNameError: the plugin that has the scheme isn't installed.
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
            f"TARGET {text!r} has nothing after the colon: write {scheme}:TEXT, such as {scheme}:FOLDER"
        )
    catalogue.find(kind, scheme).refuse_missing()
    # Make paths absolute: workers may run in other folders, and config.yaml is used from any folder.
    return SchemeTarget(kind, scheme, os.path.abspath(rest) if os.path.exists(rest) else rest)


def _refuse_missing_plugin(kind: TargetKind, scheme: str, cause: TargetError) -> None:
    """Raise an error that says what to install, if a known plugin has the scheme."""
    distribution = known_plugins().of_kind(kind).get(scheme)
    if distribution is not None:
        raise UnknownNameError(f"TARGET {scheme}:… isn't available: pip install {distribution}") from cause
