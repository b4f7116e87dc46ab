"""What installed plugins cost each process that looks for them: python tests/benchmarks/discovery.py"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "15"))
PLUGINS = 200
LOOK = """
import time
from stratagem.installed.catalogue import load_catalogue
began = time.process_time()
load_catalogue()
print(time.process_time() - began)
"""
SOURCE = """
from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components():
    presets = {{"{name}_fast": {{"speed": 2}}}}
    capabilities = Capabilities(accelerators=("cpu", "cuda"), features=frozenset({{"several_nodes"}}))
    return [Component("strategy", "{name}", "{name}.strategy:S", "", presets=presets, capabilities=capabilities)]
"""


def install(folder: Path, plugins: int) -> None:
    """Write distributions of one strategy each into `folder`."""
    folder.mkdir()
    for index in range(plugins):
        name = f"plugin_{index}"
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
        (folder / name / "plugin.py").write_text(SOURCE.format(name=name))
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[stratagem]\n{name} = {name}.plugin\n")


def seconds(site: Path, **variables: str) -> float:
    """CPU time of one look, in a process of its own."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], check=True, capture_output=True, text=True, env=environ
    )
    return float(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as base:
        none, many = Path(base, "none"), Path(base, "many")
        install(none, 0)
        install(many, PLUGINS)
        time.sleep(2.5)  # records of younger files aren't kept
        cache = {"XDG_CACHE_HOME": base}
        ways = {"with records kept": cache, "without (STRATAGEM_NO_CACHE=1)": {"STRATAGEM_NO_CACHE": "1"}}
        over: dict[str, list[float]] = {way: [] for way in ways}
        for round_index in range(ROUNDS + 3):
            for way, variables in ways.items():
                difference = seconds(many, **variables) - seconds(none, **variables)
                if round_index > 2:  # until then, records are looked at and kept
                    over[way].append(1000 * difference)
    for way, values in over.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"{PLUGINS} plugins over none, {way}: {middle:.1f} ms of CPU time ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
