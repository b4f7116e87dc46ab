"""Environments under launchers that are installed: torchrun always, mpirun where it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.selection import choose_environment

e = choose_environment(load_catalogue(), "auto", os.environ).value
place = [e.name, e.global_rank, e.local_rank, e.node_rank, e.world_size, e.local_world_size]
with open(f"{sys.argv[1]}/{e.global_rank}.json", "w") as file:
    json.dump([place, e.main_address, e.main_port, e.store_is_served], file)
"""


def run(command: list[str], folder: Path) -> list[list[object]]:
    program = folder / "place.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [*command, str(program), str(folder)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    places = run(torchrun, tmp_path)
    assert [place for place, *_ in places] == [
        ["torchelastic", 0, 0, 0, 2, 2],
        ["torchelastic", 1, 1, 0, 2, 2],
    ]
    assert places[0][1:] == places[1][1:]
    assert places[0][3] is True


def installed(family: str) -> str | None:
    """The command of this MPI: Debian adds the family to its name, others call it mpirun."""
    for command in (f"mpirun.{family}", "mpirun"):
        path = shutil.which(command)
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if ("HYDRA" in version) == (family == "mpich"):
            return path
    return None


@pytest.mark.parametrize(
    ("family", "options"),
    [("openmpi", ["--allow-run-as-root", "--oversubscribe", "-np", "2"]), ("mpich", ["-np", "2"])],
)
def test_mpirun(family: str, options: list[str], tmp_path: Path) -> None:
    mpirun = installed(family)
    if mpirun is None:
        pytest.skip(f"mpirun of {family} isn't installed")
    places = run([mpirun, *options, sys.executable], tmp_path)
    assert [place for place, *_ in places] == [["mpi", 0, 0, 0, 2, 2], ["mpi", 1, 1, 0, 2, 2]]
    assert places[0][1:] == places[1][1:]
    assert places[0][1] == "127.0.0.1"
