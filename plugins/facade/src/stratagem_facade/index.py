"""The index of our plugins: which distribution offers a name, for install hints. `make facade` writes index.json."""

from __future__ import annotations

import json
from pathlib import Path

from stratagem.sdk.catalogue import Index
from stratagem_facade.former_settings import renamed

_TABLES = json.loads(Path(__file__).with_name("index.json").read_text("utf-8"))
INDEX = Index(
    {
        kind: {name: distribution for distribution, names in homes.items() for name in names}
        for kind, homes in _TABLES["offers"].items()
    },
    _TABLES["launchers"],
    renamed,
)
"""What the core reads through the entry point."""
