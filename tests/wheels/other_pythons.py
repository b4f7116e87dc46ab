"""What of the wheels works without torch, under other versions of Python than this one, where they are installed.

torch's wheels for them are gigabytes; pull requests try README's programs under each version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
WITHOUT_TORCH = ("stratagem --help", "stratagem strategies", "stratagem plugins", "stratagem example digits")


def interpreters() -> Iterator[str]:
    """Yield the commands of other versions that are on PATH and run."""
    for version in VERSIONS:
        command = shutil.which(f"python{version}")
        if command is None or version == "{}.{}".format(*sys.version_info):
            continue
        if subprocess.run([command, "--version"], capture_output=True, check=False).returncode == 0:
            yield command


def install_without_torch(python: str, folder: Path, wheels: list[Path]) -> Path:
    """Make folder/venv with `stratagem`, and return where its commands are.

    pip can't leave a requirement out: the wheels are installed without what they require, and the rest is named.
    """
    quiet([python, "-m", "venv", folder / "venv"])
    ours, others = requirements("stratagem", wheels)
    pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    quiet([*pip, "--no-deps", *ours])
    quiet([*pip, *others])
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    # Each interpreter compiles what it installs; a file that it can't compile is only a warning of pip's.
    compiled = [*site.glob("stratagem*/**/*.py")]
    cached = {path.name.split(".")[0] for path in site.glob("stratagem*/**/__pycache__/*.pyc")}
    assert compiled
    assert {path.stem for path in compiled} <= cached, "these have no bytecode"
    return folder / "venv/bin"


def quiet(command: list[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout


def requirements(name: str, wheels: list[Path]) -> tuple[list[Path], list[str]]:
    """Return our wheels that a distribution needs, and the requirements of other projects, without torch."""
    by_name = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in wheels}
    left, ours, others = [Requirement(name)], dict[str, Path](), set[str]()
    while left:
        wanted = left.pop()
        if wanted.name not in by_name:
            if wanted.name != "torch":
                others.add(str(wanted).partition(";")[0])
            continue
        if wanted.name not in ours:
            ours[wanted.name] = by_name[wanted.name]
            found = [Requirement(text) for text in metadata(by_name[wanted.name])]
            left += [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return list(ours.values()), sorted(others)


def metadata(wheel: Path) -> list[str]:
    name, version, *_ = wheel.name.split("-")
    text = zipfile.ZipFile(wheel).read(f"{name}-{version}.dist-info/METADATA").decode()
    return Parser().parsestr(text).get_all("Requires-Dist") or []
