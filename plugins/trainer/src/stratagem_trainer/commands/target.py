"""`Target`: the TARGET of a command, "file.py:Class" or "package.module:Class"."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from importlib.machinery import PathFinder
from typing import Any

from stratagem_cli.reporting import keep_cause

import stratagem_trainer
from stratagem.errors import TargetError, nearest
from stratagem_trainer.commands.defined_names import DefinedNames

EXAMPLE = "as in digits.py:Digits or package.module:Digits"


@dataclass(frozen=True)
class Target:
    """A class of modules, or a function that makes a module, before it is imported."""

    place: str
    """A file's absolute path, or a module's dotted name."""
    name: str
    """Name of the class, such as "Digits"."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Check a target as far as possible without running the user's code.

        Raises:
            TargetError: there is no such file, module or class, or the file isn't Python.
        """
        place, colon, name = text.rpartition(":")
        if not colon or name.endswith(".py"):
            raise _without_class(text)
        if not place or not name.isidentifier():
            raise TargetError(f"TARGET {text!r} names no class in a file or module: write it {EXAMPLE}")
        target = cls(os.path.abspath(place) if _is_file(place) else place, name)
        source = target._source(text)
        if source is not None:
            target._refuse_missing_name(text, _names_in(source, text))
        return target

    @property
    def is_file(self) -> bool:
        """Whether it is a path of a file."""
        return _is_file(self.place)

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    def make_importable(self) -> None:
        """Put the file's folder, or the working directory, on `sys.path`, as Python does for a script."""
        folder = os.path.dirname(self.place) if self.is_file else os.getcwd()
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def load(self, base: str = "Module") -> Callable[..., Any]:
        """Import the class or function. Called in a worker.

        Args:
            base: name of the class in stratagem from which a class must be derived.

        Returns:
            A subclass of it, or a function.

        Raises:
            TargetError: it can't be imported, with the original traceback; or it is something else.
        """
        self.make_importable()
        try:
            module = self._import_file() if self.is_file else import_module(self.place)
        except TargetError:
            raise
        except (Exception, SystemExit) as error:
            raise keep_cause(
                TargetError(f"TARGET {str(self)!r} can't be imported: {type(error).__name__}: {error}"), error
            ) from error
        try:
            found = getattr(module, self.name)
        except AttributeError:
            raise _no_such_name(
                str(self), self.name, [n for n in vars(module) if not n.startswith("_")]
            ) from None
        if isinstance(found, type) and not issubclass(found, getattr(stratagem_trainer, base)):
            bases = ", ".join(base.__qualname__ for base in found.__bases__)
            raise TargetError(
                f"TARGET {str(self)!r} is a class derived from {bases}, not from stratagem.{base}: derive it "
                "from that"
            )
        if not callable(found):
            raise TargetError(
                f"TARGET {str(self)!r} is a {type(found).__name__}: name a class derived from stratagem.{base}, "
                "or a function that returns an object of one"
            )
        return found  # type: ignore[no-any-return]  # checked above

    def arguments(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments that the target's text contains: none.

        Args:
            make: what `load` returned.
        """
        return {}

    def _import_file(self) -> Any:
        name = os.path.splitext(os.path.basename(self.place))[0]
        known = sys.modules.get(name)
        if known is not None:
            if _same_file(getattr(known, "__file__", None), self.place):
                return known
            raise TargetError(
                f"TARGET file {self.place!r} has the name of the module {name!r}, which is imported already: "
                "rename the file"
            )
        spec = util.spec_from_file_location(name, self.place)
        if spec is None or spec.loader is None:
            raise TargetError(
                f"TARGET file {self.place!r} can't be imported as a module called {name!r}: rename it"
            )
        module = util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _source(self, text: str) -> str | None:
        """Return the path of the file with the target; None if only an import could find it."""
        if self.is_file:
            if not os.path.isfile(self.place):
                raise TargetError(f"TARGET {text!r} can't be found: there is no file {self.place!r}")
            return self.place
        if not all(part.isidentifier() for part in self.place.split(".")):
            raise TargetError(
                f"TARGET {text!r} is neither a file ending in .py nor a module's name: write it {EXAMPLE}"
            )
        self.make_importable()
        path: list[str] | None = None
        parts = self.place.split(".")
        for end in range(1, len(parts) + 1):
            # Not importlib.util.find_spec: it would import parent packages.
            spec = PathFinder.find_spec(".".join(parts[:end]), path)
            if spec is None and end == 1:
                spec = util.find_spec(parts[0])  # a built-in module, or one that an import hook finds
            if spec is None:
                raise TargetError(
                    f"TARGET {text!r} can't be found: there is no module {'.'.join(parts[:end])!r} in "
                    f"{os.getcwd()!r}, and none is installed"
                )
            path = list(spec.submodule_search_locations or [])
        origin = spec.origin if spec is not None else None
        return origin if origin is not None and origin.endswith(".py") else None

    def _refuse_missing_name(self, text: str, names: DefinedNames) -> None:
        if names.complete and self.name not in names.all:
            raise _no_such_name(text, self.name, list(names.classes) or sorted(names.all))


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


def _names_in(path: str, text: str) -> DefinedNames:
    try:
        with open(path, "rb") as file:
            return DefinedNames.of(file.read(), path)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise keep_cause(
            TargetError(f"TARGET {text!r} isn't Python: {error.msg}{line} of {path}"), error
        ) from None
    except (RecursionError, MemoryError) as error:
        raise TargetError(f"TARGET {text!r} can't be read: {path} is nested too deep for Python") from error
    except (OSError, ValueError) as error:
        raise TargetError(f"TARGET {text!r} can't be read: {error}") from error


def _without_class(text: str) -> TargetError:
    if _is_file(text) and os.path.isfile(text):
        classes = _names_in(text, text).classes
        if classes:
            choices = ", ".join(f"{text}:{name}" for name in classes)
            return TargetError(f"TARGET {text!r} names no class: choose {choices}")
        return TargetError(f"TARGET {text!r} names no class, and the file defines none")
    return TargetError(f"TARGET {text!r} names no class: write it {EXAMPLE}")


def _no_such_name(text: str, name: str, known: list[str]) -> TargetError:
    return TargetError(f"TARGET {text!r} has no class {name!r}; {nearest(name, known)}")


def _same_file(one: str | None, other: str) -> bool:
    return one is not None and os.path.exists(one) and os.path.samefile(one, other)
