"""The names of precisions in float8: torchao's recipes, each also emulated."""

from __future__ import annotations

from typing import Literal, get_args

Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]
"""How often a matrix is scaled: once, once per row, or the latter with gradients of weights in bfloat16."""
RECIPES: tuple[Recipe, ...] = get_args(Recipe)


def name_of(recipe: Recipe, emulate: bool) -> str:
    """Return the name of a precision, as "float8-rowwise-emulated"."""
    parts = ["float8", *([] if recipe == "tensorwise" else [recipe]), *(["emulated"] if emulate else [])]
    return "-".join(parts)


MEANINGS: dict[str, tuple[Recipe, bool]] = {
    name_of(recipe, emulate): (recipe, emulate) for emulate in (False, True) for recipe in RECIPES
}
"""Name of a precision → its recipe, and whether it is emulated."""
