"""The page: one HTML file without any other, with the model's tree coloured by error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined

from stratagem_diff.comparison import Comparison
from stratagem_diff.files import Place
from stratagem_diff.sentences import Said

SHADES = (1e-4, 1e-2)
"""Relative errors from which a difference is drawn in the next darker shade."""
VALUES = 40
"""Rows of a module's table."""


@dataclass
class _Module:
    """A module's row of the tree."""

    name: str
    kind: str
    places: list[Place] = field(default_factory=list)


def document(found: Comparison, sides: tuple[str, str], of: Said) -> str:
    """Return the page of a comparison.

    Args:
        found: what came of it.
        sides: what A and B are, in a line each.
        of: what is said of it.
    """
    templates = Environment(
        loader=PackageLoader("stratagem_diff.page", "templates"), autoescape=True, undefined=StrictUndefined
    )
    return templates.get_template("page.html").render(
        sides=sides,
        sentence=of.sentence,
        downstream=of.downstream,
        non_finite=of.non_finite,
        causes=of.causes,
        modules=[_row(found, module) for module in _modules(found)],
        notes=of.notes,
        shades=SHADES,
    )


def _modules(found: Comparison) -> list[_Module]:
    """Return the modules in the model's order, each with the values that belong to it."""
    modules = {name: _Module(name, kind) for name, kind in found.ours.modules.items()}
    differing = [each.place for each in found.differences]
    for place in dict.fromkeys([*found.errors, *differing]):
        if place.kind == "input":
            continue
        name = place.name
        if place.kind not in ("output", "output gradient"):
            name = name.rpartition(".")[0]
        while name not in modules and name:
            name = name.rpartition(".")[0]
        if name in modules:
            modules[name].places.append(place)
    return list(modules.values())


def _row(found: Comparison, module: _Module) -> dict[str, object]:
    differing = {each.place: each for each in found.differences}
    values = []
    for place in module.places:
        error, allowed = found.errors.get(place, (math.inf, 0.0))
        values.append(
            {
                "step": place.step,
                "kind": f"{place.kind} {place.item}" if place.kind == "optimizer state" else place.kind,
                "name": place.name or "(model)",
                "error": f"{error:.1e}" if math.isfinite(error) else "-",
                "allowed": f"{allowed:.1e}",
                "shade": _shade(error) if place in differing else 0,
            }
        )
    worst = max((int(str(value["shade"])) for value in values), default=-1)
    order = sorted(range(len(values)), key=lambda index: (values[index]["shade"] == 0, index))
    return {
        "name": module.name or "(model)",
        "kind": module.kind,
        "depth": 0 if not module.name else 1 + module.name.count("."),
        "shade": worst,
        "is_first": found.first is not None and found.first.place in module.places,
        "values": [values[index] for index in order[:VALUES]],
        "more": max(0, len(values) - VALUES),
    }


def _shade(error: float) -> int:
    return 1 + sum(error >= limit for limit in SHADES)
