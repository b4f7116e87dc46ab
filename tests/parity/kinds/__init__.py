"""All kinds: each module adds its own to the table when it is imported, in this order."""

from importlib import import_module

from tests.parity.kind import KINDS

THEMES = (
    "models",
    "layers",
    "structure",
    "construction",
    "optimizers",
    "schedules",
    "steps",
    "losses",
    "changes",
    "hooks",
    "numerics",
)

for theme in THEMES:
    import_module(f"tests.parity.kinds.{theme}")

__all__ = ["KINDS"]
