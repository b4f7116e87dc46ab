"""Maps Lightning's modules to the modules of this package."""

from __future__ import annotations

import re

_ROOTS = (
    ("pytorch_lightning", "stratagem_lightning.pytorch"),
    ("lightning_fabric", "stratagem_lightning.fabric"),
    ("lightning", "stratagem_lightning"),
)
# A match must not be inside a file path, a URL, an address or a longer name.
CLASS_PATH = re.compile(
    r"(?<![\w./@\\-])(?:pytorch_lightning|lightning_fabric|lightning)(?:\.[A-Za-z_]\w*)+(?![\w/@\\-]|\.\w|://)"
)
"""A dotted name of Lightning, as it occurs in configuration files and strings."""


def module_here(name: str) -> str | None:
    """Return the module here for Lightning's module `name`; None if Lightning has no such module."""
    for root, here in _ROOTS:
        if name == root or name.startswith(root + "."):
            return here + name[len(root) :]
    return None
