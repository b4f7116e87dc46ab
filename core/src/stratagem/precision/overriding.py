"""`is_overridden`: what a class's author needn't say, found once when the class is made."""

from __future__ import annotations


def is_overridden(cls: type, base: type, methods: set[str], answer: str) -> bool:
    """Whether a class or a mixin of it overrides one of `methods`, and says nothing itself by the attribute `answer`.

    Args:
        cls: derives from `base`.
        base: whose own methods and answer belong together.
        methods: by name.
        answer: an attribute that says something of the methods. A class that defines it knows what it does.
    """
    for each in cls.__mro__[: cls.__mro__.index(base)]:
        if answer in vars(each):
            return False
        if methods & vars(each).keys():
            return True
    return False
