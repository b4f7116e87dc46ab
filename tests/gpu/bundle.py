"""Everything but torch in one folder, for a machine without a network: python -m tests.gpu.bundle --python 3.12

`.gpu/site` has every distribution of this repository, and what they and the tests need, for a version of Python.
Torch and what it needs itself are the other machine's. `PYTHONPATH=.gpu/site` is all the installation that there is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".gpu" / "site"
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "deepspeed", "fairscale", "torchao")
"""Beside what the distributions here need."""
WITHOUT_WHEELS = ("deepspeed", "fairscale", "hjson")
"""On PyPI as sources alone, of Python alone."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def closure(names: list[str]) -> dict[str, str]:
    """Return name → version of installed distributions and of what these need."""
    found: dict[str, str] = {}
    while names:
        name = canonicalize_name(names.pop())
        if name in found:
            continue
        try:
            each = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = each.version
        required = [Requirement(text) for text in each.requires or []]
        names += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def main() -> None:
    """Make the folder again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    version = parser.parse_args().python
    projects = [path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    ours = [ROOT, ROOT / "core", *projects]
    theirs = closure(["stratagem", "stratagem-testing", *NEEDED])
    torchs = closure(["torch", "numpy"])
    wanted, sources = list[str](), list[str]()
    for name, number in theirs.items():
        if name not in torchs and not name.startswith("stratagem"):
            (sources if name in WITHOUT_WHEELS else wanted).append(f"{name}=={number}")
    shutil.rmtree(SITE, ignore_errors=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-qq",
        "--no-deps",
        "--no-compile",
    ]
    other = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    other += [f"--platform={platform}" for platform in PLATFORMS]
    subprocess.run([*pip, "--target", str(SITE), *other, *wanted], check=True)
    with tempfile.TemporaryDirectory() as wheels:
        for project in ours:
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels]
            subprocess.run(
                build, cwd=project, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels]
        subprocess.run([sys.executable, "-m", "pip", *build, *sources], check=True)
        built = [str(path) for path in Path(wheels).glob("*.whl")]
        subprocess.run([*pip, "--target", str(SITE), "--upgrade", *built], check=True)
    # torchao's own kernels are of other precisions: those of float8 are torch's.
    for path in SITE.glob("torchao/*.so"):
        path.unlink()
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"{SITE.relative_to(ROOT)}: {len(wanted) + len(built)} distributions, {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
