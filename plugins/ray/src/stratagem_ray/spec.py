"""`RaySpec`: what the driver is to do, as JSON in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

FILE = "ray.json"


@dataclass(frozen=True, kw_only=True)
class RaySpec:
    """A run on a Ray cluster."""

    address: str
    """Address of the cluster, as ray.init takes it; "local" starts one."""
    min_nodes: int
    max_nodes: int
    resources: Mapping[str, float]
    """Resources of each node, as {"CPU": 8.0}."""
    strategy: str
    """Strategy of the placement group, such as "STRICT_SPREAD"."""
    code_dir: str
    """Ray brings it to all nodes."""
    subfolder: str
    """Working directory, relative to it."""
    arguments: tuple[str, ...]
    """Arguments of each node's Python."""
    variables: Mapping[str, str]
    max_restarts: int
    """How often a node that was lost is replaced."""
    place_dir: str
    output_dir: str

    def as_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, place_dir: str) -> RaySpec:
        """Read the file in the folder of the place."""
        with open(os.path.join(place_dir, FILE), encoding="utf-8") as file:
            content = json.load(file)
        content["arguments"] = tuple(content["arguments"])
        return cls(**content)
