"""Another user of the machine reaches nothing of a launch on one node: played as the user nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import FILES, STORES, as_nobody, listeners, why_not

pytestmark = [pytest.mark.timeout(180), pytest.mark.serial]

HEAD = """
import os, sys, time
def idle(*_):
    while not os.path.exists(sys.argv[1] + "/stop"):
        time.sleep(0.1)
"""

TORCHS_OWN = (
    HEAD
    + """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
if __name__ == "__main__":
    elastic_launch(
        LaunchConfig(
            1, 1, 1, run_id="known", rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"is_host": True}, start_method="fork", monitor_interval=0.05,
        ),
        idle,
    )()
"""
)
"""As Stratagem launched before it had a rendezvous of its own."""

OURS = (
    HEAD
    + """
import stratagem
from stratagem_ddp import DDPStrategy
def work(runtime):
    open(f"{sys.argv[1]}/ready{runtime.rank}", "w").close()
    idle()
    runtime.collectives.barrier("all reached the end")
    return runtime.collectives.gather_objects(runtime.rank)
if __name__ == "__main__":
    strategy = DDPStrategy(start_method="fork")
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2)
    assert runtime.launch(work, quiet=True) == [0, 1]
"""
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may write to, as /tmp is."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # workers of a killed launch may still write there


def started(program: str, folder: Path, is_ready: str, timeout_s: float = 90) -> subprocess.Popen[bytes]:
    """Start a launching program, and wait for what it shows when its workers run."""
    environ = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    script = folder / "program.py"
    script.write_text(program)
    process = subprocess.Popen([sys.executable, str(script), str(folder)], env=environ)
    deadline = time.monotonic() + timeout_s
    while not (listeners(process.pid) if is_ready == "listens" else (folder / is_ready).exists()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def attack(process: subprocess.Popen[bytes], folder: Path) -> list[int]:
    """Write code into every store that answers; return the ports of those."""
    ports = [port for _, port in listeners(process.pid)]
    attacker = as_nobody(
        STORES, ports=ports, keys=["torch.rendezvous.known"], marker=str(folder / "attacked")
    )
    printed, _ = attacker.communicate(timeout=200)
    assert attacker.returncode == 0
    reached: list[int] = json.loads(printed)
    return reached


def test_this_attacker_gets_code_run_through_the_rendezvous_of_torch(shared: Path) -> None:
    """Shows that the next test's attacker knows its trade."""
    process = started(TORCHS_OWN, shared, "listens")
    try:
        assert attack(process, shared)
        deadline = time.monotonic() + 200
        while not (shared / "attacked").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (shared / "attacked").stat().st_uid == os.getuid()
    finally:
        (shared / "stop").touch()
        process.kill()
        process.wait()


def test_on_one_node_another_user_reaches_no_store_and_no_file(shared: Path) -> None:
    process = started(OURS, shared, "ready1")
    try:
        found = listeners(process.pid)
        # What gloo listens on for its connections, one socket per rank.
        assert [address for address, _ in found] == ["127.0.0.1"] * 2
        assert attack(process, shared) == []
        folders = [str(path) for path in shared.iterdir() if path.is_dir()]
        assert any("stratagem-launch-" in path for path in folders)
        snoop = as_nobody(FILES, folders=folders, marker=str(shared / "attacked"))
        assert json.loads(snoop.communicate(timeout=200)[0]) == []
        # It goes on undisturbed.
        (shared / "stop").touch()
        assert process.wait(60) == 0
        assert not (shared / "attacked").exists()
    finally:
        process.kill()
        process.wait()
