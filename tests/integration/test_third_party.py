"""A third-party plugin: installed by pip, selected, wrapping a hook, and gone again."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRATAGEM = Path(sys.executable).with_name("stratagem")
DIGITS = str(ROOT / "examples/digits.py:Digits")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip installed examples/third_party."""
    base = tmp_path_factory.mktemp("third_party")
    # Built from a copy: building leaves nothing in the checkout.
    shutil.copytree(ROOT / "examples/third_party", base / "source")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", base / "site", base / "source"], check=True)
    return base / "site"


def stratagem(folder, *args, site=None):
    paths = [str(site or ""), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [STRATAGEM, *args], cwd=folder, env=environ, capture_output=True, text=True, timeout=240
    )


def names(listing):
    return [record["name"] for record in json.loads(listing.stdout)]


def test_it_is_listed_while_it_is_installed_and_not_afterwards(site, tmp_path):
    record = next(
        r
        for r in json.loads(stratagem(tmp_path, "strategies", "--json", site=site).stdout)
        if r["name"] == "periodic"
    )
    assert (record["distribution"], record["version"]) == ("periodic-average", "1.0.0")
    assert record["presets"] == ["periodic_rarely"]
    assert "periodic" not in names(stratagem(tmp_path, "strategies", "--json"))


def test_it_trains_in_two_processes_and_its_extension_counts(site, tmp_path):
    flags = ["--accelerator", "cpu", "--devices", "2", "--max-steps", "8", "--run-dir", "run"]
    strategy = ["--strategy", "periodic", "--set", "strategy.period=4", "--use", "traffic"]
    done = stratagem(tmp_path, "fit", DIGITS, *flags, *strategy, site=site)
    assert done.returncode == 0, done.stderr
    assert "periodic-average 1.0.0" in done.stdout + done.stderr
    assert re.search(r"^traffic: \d+ all_reduce, [\d.]+ KiB$", done.stdout + done.stderr, re.MULTILINE)
    assert "period: 4" in (tmp_path / "run/config.yaml").read_text()


def test_a_bad_setting_of_it_is_refused_in_one_sentence(site, tmp_path):
    done = stratagem(
        tmp_path, "fit", DIGITS, "--strategy", "periodic", "--set", "strategy.period=0", site=site
    )
    assert done.returncode == 2
    assert "period=0 must be at least 1 optimizer step" in done.stderr
    assert "Traceback" not in done.stderr


def test_selecting_it_when_it_is_gone_is_refused(tmp_path):
    done = stratagem(tmp_path, "fit", DIGITS, "--strategy", "periodic")
    assert done.returncode == 2
    assert "no strategy is called 'periodic'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_left_out(site, tmp_path):
    done = stratagem(
        tmp_path, "fit", DIGITS, "--strategy", "periodic", "--disable-plugin", "periodic-average", site=site
    )
    assert done.returncode == 2
    assert "no strategy is called 'periodic'" in done.stderr
