"""`--on kubernetes` with the real kubectl, against a stand-in for the cluster's API server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_api_server import StandInCluster, stand_in_cluster
from stratagem_kubernetes import KubernetesPlace
from stratagem_places import PlacedRun, PlaceRequest

from stratagem.errors import UsageError

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]
PROGRAM = """
import sys, time
print("begins", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with stand_in_cluster(folder) as (made, config):
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("HOME", str(folder))
        yield made


def placed(tmp_path: Path, *arguments: str, **options: Any) -> tuple[KubernetesPlace, PlaceRequest]:
    run_dir, code = tmp_path / "runs" / "first", tmp_path / "code"
    (run_dir / "place").mkdir(parents=True)
    code.mkdir()
    (code / "program.py").write_text(PROGRAM)
    place = KubernetesPlace(image="here", mount=str(tmp_path / "pod"), **options)
    return place, PlaceRequest(
        stage="run",
        words=("program.py", *arguments),
        run_dir=str(run_dir),
        takes_run_dir=False,
        code_dir=str(code),
        devices=1,
    )


def until_over(place: KubernetesPlace, run: PlacedRun, within_s: float = 60) -> Any:
    deadline = time.monotonic() + within_s
    while not (status := place.status(run)).is_over:
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    return status


def test_a_run_is_submitted_read_and_forgotten(cluster: StandInCluster, tmp_path: Path) -> None:
    place, request = placed(tmp_path, "0", "3")
    assert place.why_not() is None
    run = PlacedRun(run_dir=request.run_dir, place="kubernetes", job=place.submit(request))
    with pytest.raises(UsageError, match="of a run in a folder of that name"):
        place.submit(request)
    status = until_over(place, run)
    assert (status.state, status.detail, status.exit_code) == ("failed", "PodFailurePolicy", 3)
    assert "begins\n" in list(place.logs(run))
    assert "begins\n" in list(place.logs(run, follow=True))
    with pytest.raises(UsageError, match="there is no rank 1: the run has 1 nodes with 1 processes each"):
        list(place.logs(run, rank=1))
    place.stop(run)
    assert sorted(cluster.deleted) == ["configmaps/first", "jobs/first"]
    assert place.status(run).state == "stopped"


def test_a_run_that_is_stopped_is_reported_as_stopped(cluster: StandInCluster, tmp_path: Path) -> None:
    place, request = placed(tmp_path, "60", "0")
    run = PlacedRun(run_dir=request.run_dir, place="kubernetes", job=place.submit(request))
    assert place.status(run).state == "running"
    [process] = cluster.running.values()
    place.stop(run)
    assert process.wait(120) != 0


def test_a_missing_cluster_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert KubernetesPlace().why_not() == (
        "kubectl has no current context: kubectl config use-context NAME, or --on-set context=NAME"
    )
    assert KubernetesPlace(context="gone").why_not() == (
        "kubectl has no context 'gone': `kubectl config get-contexts` lists them"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert KubernetesPlace().why_not() == "kubectl isn't installed: https://kubernetes.io/docs/tasks/tools"


@pytest.mark.long
def test_the_command_line_follows_two_pods_to_their_end(cluster: StandInCluster, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        PROGRAM.replace('print("begins"', 'import os\nprint("begins", os.environ["RANK"]')
    )
    command = [sys.executable, "-m", "stratagem", "run", "--on", "kubernetes", "--on-set", "image=here"]
    command += [
        "--on-set",
        f"mount={tmp_path}/pod",
        "--strategy",
        "ddp",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
    ]
    command += ["--num-nodes", "2"]
    done = subprocess.run(
        [*command, "program.py", "1", "0"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    for rank in (0, 1):
        assert f"[node {rank}] [rank {rank}] begins {rank}\n" in done.stdout
    [folder] = (tmp_path / "runs").iterdir()
    of_rank = [sys.executable, "-m", "stratagem", "logs", str(folder), "--rank", "1"]
    said = subprocess.run(of_rank, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert said.stdout == "begins 1\n", (said.stdout, said.stderr)
