"""Which methods of its base a user's object has in a version of its own: asked once per run, not per step."""

from __future__ import annotations


def overrides(obj: object, name: str, base: type) -> bool:
    """Whether an object, or a class of it before `base`, has a method of its own in the place of `base`'s."""
    order = type(obj).__mro__
    return name in vars(obj) or any(name in vars(each) for each in order[: order.index(base)])
