"""The plugin that docs/writing-a-plugin.md builds: installed by pip, it passes its own tests."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/half-gradients"
BIN = Path(sys.executable).parent


def run(*words, folder, site):
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of its folder, and a folder into which pip installed it."""
    base = tmp_path_factory.mktemp("half_gradients")
    shutil.copytree(EXAMPLE, base / "source", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", base / "site", base / "source"], check=True)
    return base / "source", base / "site"


@pytest.mark.timeout(240)
def test_it_passes_its_tests_in_two_processes(installed):
    source, site = installed
    # One and four processes, and the slow start methods, are left to `make conformance`.
    chosen = ["-k", "(-2 and not start_methods) or residuals"]
    done = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, folder=source, site=site
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 45, done.stdout


def test_it_is_held_to_what_16_bits_allow(installed):
    source, site = installed
    program = (
        "import json\n"
        "from dataclasses import replace\n"
        "from half_gradients.conformance import SUBJECT\n"
        "from stratagem_testing import run_check\n"
        "from stratagem_testing.strategies.parity import check_parity\n"
        "exact = run_check(check_parity.conformance, replace(SUBJECT, tolerances={}), 2)\n"
        "print(json.dumps([exact.verdict, exact.reason]))\n"
    )
    (source / "program.py").write_text(f"if __name__ == '__main__':\n    exec({program!r})\n")
    done = run(sys.executable, "program.py", folder=source, site=site)
    verdict, reason = json.loads(done.stdout)
    assert (verdict, "more than 2e-06" in reason) == ("failed", True), done.stderr


def test_it_trains_the_digits(installed, tmp_path):
    _, site = installed
    words = ["fit", f"{ROOT}/examples/digits.py:Digits", "--max-epochs", "4", "--run-dir", "run"]
    flags = ["--strategy", "half-gradients", "--accelerator", "cpu", "--devices", "2"]
    done = run(BIN / "stratagem", *words, *flags, folder=tmp_path, site=site)
    assert done.returncode == 0, done.stderr
    accuracy = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("val_acc"))
    assert float(accuracy) > 0.9
