"""Jobs of a real Slurm put themselves back into the queue, and go on by themselves: `make test-places`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places.slurm_cluster import HERE, Cluster, running
from tests.soak.signals import tensors_of

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (HERE / "usr/bin/scontrol").exists(), reason="needs Slurm: make test-places fetches it"
    ),
]

MODULE = f"{Path(__file__).parents[1] / 'soak' / 'interrupted_module.py'}:Interrupted"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(HERE, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(cluster: Cluster, folder: Path, *flags: str, minutes: int, pause_s: float) -> str:
    """Submit a job of two tasks that train, and return its number."""
    folder.mkdir()
    script = folder / "job.sh"
    fit = f"{sys.executable} -m stratagem fit {MODULE} --set model.folder={folder} --set model.pause_s={pause_s}"
    fit += f" --set model.count=240 --strategy ddp --accelerator cpu --devices 2 --max-epochs 2 {' '.join(flags)}"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --nodes=1 --ntasks=2 --time={minutes} --requeue --open-mode=append\n"
        f"#SBATCH --output={folder}/out.txt\n"
        f"export PYTHONPATH={os.environ.get('PYTHONPATH', '')} OMP_NUM_THREADS=1\nsrun {fit}\n"
    )
    return cluster.run("sbatch", "--parsable", "--chdir", str(folder), str(script)).strip()


def wait_for(path: Path, within_s: float = 120) -> str:
    deadline = time.monotonic() + within_s
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} isn't there"
        time.sleep(0.2)
    return path.read_text()


def finished(cluster: Cluster, job: str, folder: Path) -> dict[str, str]:
    shown = cluster.wait(job, ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"), 600)
    assert shown["JobState"] == "COMPLETED", (folder / "out.txt").read_text()
    return shown


def test_a_signal_puts_the_job_back_and_it_goes_on_without_losing_a_step(
    cluster: Cluster, tmp_path: Path
) -> None:
    whole = submit(cluster, tmp_path / "whole", minutes=10, pause_s=0.01)
    finished(cluster, whole, tmp_path / "whole")
    folder = tmp_path / "stopped"
    job = submit(cluster, folder, minutes=10, pause_s=0.1)
    wait_for(folder / "pid.1")
    time.sleep(2)
    cluster.run("scancel", "--signal=USR1", job)
    shown = finished(cluster, job, folder)
    said = (folder / "out.txt").read_text()
    assert shown["Restarts"] == "1", said
    assert "stopping    by SIGUSR1" in said
    assert f"requeued    job {job}, which resumes automatically" in said
    assert "resuming" in said
    for rank in (0, 1):
        assert (folder / f"steps.{rank}").read_text() == (tmp_path / "whole" / f"steps.{rank}").read_text()
    (run_dir,) = (folder / "runs").iterdir()
    (whole_dir,) = (tmp_path / "whole" / "runs").iterdir()
    assert run_dir.name == f"slurm-{job}-Interrupted"
    assert tensors_of(run_dir) == tensors_of(whole_dir) != {}


def test_a_job_stops_before_its_time_is_over_as_often_as_it_takes(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path / "slots", "--grace-period", "35", minutes=2, pause_s=1.5)
    shown = finished(cluster, job, tmp_path / "slots")
    said = (tmp_path / "slots/out.txt").read_text()
    assert int(shown["Restarts"]) >= 1, said
    assert said.count("by the end of the job") == int(shown["Restarts"])
    steps = (tmp_path / "slots/steps.0").read_text().splitlines()
    assert len(steps) == len(set(steps)) == 60


def test_a_cancelled_job_saves_and_stays_away(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "cancelled"
    job = submit(cluster, folder, minutes=10, pause_s=0.1)
    wait_for(folder / "pid.1")
    time.sleep(1)
    cluster.run("scancel", job)
    assert cluster.wait(job, ("CANCELLED", "COMPLETED", "FAILED"), 60)["Restarts"] == "0"
    assert "saved" in (folder / "out.txt").read_text()
    assert "requeued" not in (folder / "out.txt").read_text()
