"""Finds Lightning's names in this package, or the reason why a name is absent."""

from __future__ import annotations

from stratagem_lightning.absent import ABSENT, reason_for
from stratagem_lightning.migration.modules import module_here
from stratagem_lightning.names import MODULES

_PREFIX = "stratagem_lightning"


def where_is(name: str) -> str | None:
    """Return the name in this package for a dotted name (module or attribute) of Lightning; None if there is none."""
    here = module_here(name)
    if here is None:
        return None
    below = here.removeprefix(_PREFIX).removeprefix(".")
    if below in MODULES:
        return here
    module, _, attribute = below.rpartition(".")
    return here if attribute in MODULES.get(module, ()) else None


def names_something(name: str) -> bool:
    """Whether Lightning has this dotted name. Names of hosts and files may begin with the same word."""
    here = module_here(name)
    if here is None:
        return False
    below = here.removeprefix(_PREFIX).removeprefix(".")
    first, *rest = below.split(".")
    if first not in ("pytorch", "fabric"):
        return first in (*MODULES[""], "app", "data", "store")
    known = {each.split(".")[1] for each in MODULES if each.startswith(f"{first}.")}
    absent = {each.split(".")[2] for each in ABSENT if each.startswith(f"lightning.{first}.")}
    return not rest or rest[0] in known | absent or rest[0][0].isupper()


def missing_name(name: str) -> str:
    """Return why a dotted name of Lightning is absent here, or what replaces it."""
    here = module_here(name) or name
    module, _, attribute = here.removeprefix(_PREFIX).removeprefix(".").rpartition(".")
    while module not in MODULES:
        module, _, attribute = module.rpartition(".")
    return reason_for(module, attribute).partition(" isn't here: ")[2] or reason_for(module, attribute)
