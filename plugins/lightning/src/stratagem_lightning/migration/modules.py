"""Which module here stands for which of Lightning's."""

from __future__ import annotations

import re

_ROOTS = (
    ("pytorch_lightning", "stratagem_lightning.pytorch"),
    ("lightning_fabric", "stratagem_lightning.fabric"),
    ("lightning", "stratagem_lightning"),
)
# What stands before or after isn't a name's where it is part of a path, a URL, an address or a longer name.
CLASS_PATH = re.compile(
    r"(?<![\w./@\\-])(?:pytorch_lightning|lightning_fabric|lightning)(?:\.[A-Za-z_]\w*)+(?![\w/@\\-]|\.\w|://)"
)
"""A dotted name of Lightning's, as configuration files and strings have it."""


def module_here(name: str) -> str | None:
    """Return what stands here for the module `name`; None where it isn't one of Lightning's."""
    for root, here in _ROOTS:
        if name == root or name.startswith(root + "."):
            return here + name[len(root) :]
    return None
