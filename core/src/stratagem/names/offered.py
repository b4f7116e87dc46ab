"""Names that the project itself offers, and the distributions that have them: for hints."""

import json
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("offered.json").read_text("utf-8"))
OFFERED: dict[str, dict[str, str]] = {
    kind: {name: distribution for distribution, names in homes.items() for name in names}
    for kind, homes in _TABLES["offers"].items()
}
"""Kind → name → distribution; a test holds it against the packages under plugins/."""
LAUNCHER_SIZES: dict[str, str] = _TABLES["launcher_sizes"]
"""Variable with the number of processes that a launcher has started → the environment that reads its others."""
LAUNCHER_RANKS: dict[str, str] = _TABLES["launcher_ranks"]
"""Variable with a rank among several → the environment that reads it."""
ONCE_ACCELERATORS: list[str] = _TABLES["once_accelerators"]
"""Strategies that were once given as `accelerator=`, `distributed_backend=` or `plugins=`."""
NEW_NAMES: dict[str, str] = _TABLES["new_names"]
"""Strategy's former name → what it is called now."""
OPTIMIZER_TRIAL = ("stratagem_sharding.optimizer_trial", "why_not")
"""What tries whether an optimizer can step shards."""
