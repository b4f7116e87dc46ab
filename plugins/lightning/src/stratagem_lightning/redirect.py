"""Redirects imports of Lightning to stratagem_lightning, for `python -m stratagem_lightning`.

A folder with modules of Lightning's names is put first in `sys.path`. Workers get the launching process's path, and
therefore the same modules, before they import the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from stratagem_lightning.absent import reason_for
from stratagem_lightning.names import MODULES

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "redirected")
"""Has a module for each key of `PLACES`."""
PLACES = {"lightning": "", "pytorch_lightning": "pytorch", "lightning_fabric": "fabric"}
"""Lightning's package → the module of this package that names.py lists for it."""
_ROOT = "stratagem_lightning"


class _Redirect(MetaPathFinder, Loader):
    """Finds modules below Lightning's packages. Each is the very module object of stratagem_lightning."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PLACES or "." not in fullname:
            return None
        place = _place(fullname)
        if place not in MODULES:
            # Returning None would let Python search stratagem_lightning's own folder.
            module, _, name = place.rpartition(".")
            raise ModuleNotFoundError(reason_for(module, name), name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _module(_place(spec.name))
        self._specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced it by the spec of the redirected name.
        module.__spec__ = self._specs[module.__name__]


def install() -> None:
    """Make stratagem_lightning importable under Lightning's names, in this process and its workers."""
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    if not any(isinstance(finder, _Redirect) for finder in sys.meta_path):
        # patch: lightning imports
        sys.meta_path.insert(0, _Redirect())


def take_place(name: str) -> None:
    """Replace the module of this name, which is being imported, by stratagem_lightning's module."""
    install()
    sys.modules[name] = _module(_place(name))


def _place(fullname: str) -> str:
    root, _, below = fullname.partition(".")
    return ".".join(filter(None, (PLACES[root], below)))


def _module(place: str) -> ModuleType:
    return import_module(".".join(filter(None, (_ROOT, place))))
