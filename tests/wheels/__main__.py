"""Try README's first commands and programs as a stranger does: from built wheels, in a new environment and folder.

`make test-wheels` runs this. The environment has nothing of the source tree. torch and what it requires are links to
this environment's; everything else is installed by pip, so that a dependency that no wheel declares is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.wheels.other_pythons import WITHOUT_TORCH, install_without_torch, interpreters

ROOT = Path(__file__).parents[2]
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"Save this as `(\w+\.py)` and start it with\s+`([^`]+)`:\n\n```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wheels", description=__doc__)
    parser.add_argument("dist", type=Path, help="the folder with the wheels")
    wheels = sorted(parser.parse_args().dist.resolve().glob("*.whl"))
    readme = (ROOT / "README.md").read_text()
    programs = PROGRAM.findall(readme)
    assert wheels
    assert programs
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "here").mkdir()
        environ = new_environment(folder, wheels)
        for line in commands(readme):
            run(line, folder / "here", environ)
        for name, line, source in programs:
            (folder / "here" / name).write_text(source)
            run(line, folder / "here", environ)
        installed = installed_wheels(folder, wheels)
        assert "stratagem-core" in installed
        run(
            f"{sys.executable} -m pytest -q -n 0 -o cache_dir={folder}/cache plugins/facade/tests/test_types.py",
            ROOT,
            {**os.environ, "STRATAGEM_CHECKED_PYTHON": str(folder / "venv/bin/python")},
        )
    for python in interpreters():
        print(f"# {python}, without torch", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            commands_of = install_without_torch(python, folder, wheels)
            path = f"{commands_of}{os.pathsep}{os.environ['PATH']}"
            for line in WITHOUT_TORCH:
                run(line, folder, {**without_own_variables(), "PATH": path})
    print(
        f"{len(wheels)} wheels, {len(installed)} installed: README's commands and {len(programs)} programs run"
    )


def new_environment(folder: Path, wheels: list[Path]) -> dict[str, str]:
    """Make folder/venv, and return the variables of a shell in which it is active."""
    venv.create(folder / "venv", with_pip=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (folder / "torch").mkdir()
    for path in with_requirements("torch"):
        (folder / "torch" / path.name).symlink_to(path)
    (site / "torch.pth").write_text(f"{folder / 'torch'}\n")
    return {
        **without_own_variables(),
        "PATH": f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_FIND_LINKS": str(wheels[0].parent),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def without_own_variables() -> dict[str, str]:
    """Return the variables of this process without those that tell a Python or Stratagem where things are."""
    own = ("PYTHON", "STRATAGEM", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def with_requirements(name: str) -> set[Path]:
    """Return the files and folders, in this environment, of a distribution and of all that it requires."""
    left, names, found = [name], set[str](), set[Path]()
    while left:
        current = left.pop()
        if current in names:
            continue
        names.add(current)
        try:
            installed = distribution(current)
        except PackageNotFoundError:  # of a marker's other side, or optional
            continue
        site = Path(str(installed.locate_file("")))
        names_here = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
        found |= {site / each for each in names_here}
        requirements = [Requirement(text) for text in installed.requires or ()]
        left += [
            each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def installed_wheels(folder: Path, wheels: list[Path]) -> list[str]:
    """Return the names of ours that are installed in folder/venv, each with the files of its wheel."""
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    names = []
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        record = f"{name}-{version}.dist-info/RECORD"
        if (site / record).exists():
            built = zipfile.ZipFile(wheel).read(record).decode().splitlines()
            missing = {line for line in built if "sha256=" in line} - set(
                (site / record).read_text().splitlines()
            )
            assert not missing, f"pip took another {name} than {wheel}: {sorted(missing)}"
            names.append(name.replace("_", "-"))
    return names


def commands(readme: str) -> list[str]:
    """Return the lines of README's shell blocks."""
    return [
        line for block in SHELL.findall(readme) for line in block.splitlines() if line.split("#")[0].strip()
    ]


def run(line: str, folder: Path, environ: dict[str, str]) -> str:
    """Run a line of a shell, and return what it printed."""
    print(f"$ {line}", flush=True)
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
