"""`--on slurm`, on a real Slurm of two nodes: `make test-places`."""

from __future__ import annotations

import json
import subprocess
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

SOAK = Path(__file__).parents[1] / "soak" / "interrupted_module.py"
FLAGS = (
    "--strategy",
    "ddp",
    "--accelerator",
    "cpu",
    "--devices",
    "1",
    "--num-nodes",
    "2",
    "--max-epochs",
    "2",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(HERE, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The code, where commands are typed."""
    (tmp_path / "net.py").write_text(SOAK.read_text())
    return tmp_path


def stratagem(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratagem", *words],
        cwd=folder,
        env={**cluster.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def fit(
    cluster: Cluster, folder: Path, name: str, *flags: str, pause_s: float = 0.01, elsewhere: bool = True
) -> subprocess.CompletedProcess[str]:
    (folder / name).mkdir()
    settings = (f"model.folder={folder / name}", f"model.pause_s={pause_s}", "model.count=240")
    model = [word for setting in settings for word in ("--set", setting)]
    on = ("--on", "slurm", "--on-set", "time=10", "--on-set", "partition=p") if elsewhere else ()
    words = ("fit", "net.py:Interrupted", "--run-dir", f"out/{name}", *model, *FLAGS, *on, *flags)
    return stratagem(cluster, folder, *words)


def state(cluster: Cluster, folder: Path, name: str) -> dict[str, object]:
    done = stratagem(cluster, folder, "runs", "out", "--json")
    (found,) = [run for run in json.loads(done.stdout) if run["run"] == f"out/{name}"]
    assert isinstance(found, dict)
    return found


def wait_until_over(cluster: Cluster, folder: Path, name: str, within_s: float = 300) -> dict[str, object]:
    deadline = time.monotonic() + within_s
    while (found := state(cluster, folder, name))["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, output(folder, name)
        time.sleep(2)
    return found


def wait_for(path: Path, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} isn't there"
        time.sleep(0.2)


def output(folder: Path, name: str) -> str:
    return "\n".join(path.read_text() for path in sorted((folder / "out" / name / "place/output").iterdir()))


def test_a_fit_on_two_nodes_is_the_fit_of_two_processes_here(cluster: Cluster, folder: Path) -> None:
    done = fit(cluster, folder, "there")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "run folder  out/there" in done.stdout
    assert "epoch 2/2" in done.stdout
    here = fit(cluster, folder, "here", "--devices", "2", "--num-nodes", "1", elsewhere=False)
    assert here.returncode == 0, here.stderr
    assert tensors_of(folder / "out/there") == tensors_of(folder / "out/here") != {}
    found = state(cluster, folder, "there")
    assert (found["state"], found["exit_code"]) == ("finished", 0)
    logs = stratagem(cluster, folder, "logs", "out/there", "--rank", "0")
    assert "epoch 2/2" in logs.stdout
    assert stratagem(cluster, folder, "logs", "out/there", "--rank", "1").returncode == 0
    assert stratagem(cluster, folder, "logs", "out/there", "--rank", "2").returncode == 2
    kept = folder / "out/there/place"
    assert (kept / "code/net.py").read_text() == SOAK.read_text()
    assert "pause_s: 0.01" in (kept / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "task"), [((), ""), (("--max-restarts", "1", "--num-nodes", "1:2"), "_0")], ids=["job", "array"]
)
def test_a_signal_puts_the_run_back_and_it_goes_on_where_it_was(
    cluster: Cluster, folder: Path, flags: tuple[str, ...], task: str
) -> None:
    done = fit(cluster, folder, "stopped", "--detach", *flags, pause_s=0.15)
    assert done.returncode == 0, done.stderr
    wait_for(folder / "stopped/pid.1")
    time.sleep(2)
    job = str(json.loads((folder / "out/stopped/place/record.json").read_text())["job"]["job_id"])
    cluster.run("scancel", "--signal=USR1", f"{job}{task}")
    found = wait_until_over(cluster, folder, "stopped")
    assert found["state"] == "finished", output(folder, "stopped")
    said = output(folder, "stopped")
    # Slurm may end the run before it has said that it was put back.
    assert "stopping    by SIGUSR1" in said
    assert "resuming    from" in said
    for rank in (0, 1):
        steps = (folder / f"stopped/steps.{rank}").read_text().splitlines()
        assert len(steps) == len(set(steps)) == 60


def test_a_run_that_is_asked_to_stop_saves_and_stays_away(cluster: Cluster, folder: Path) -> None:
    assert fit(cluster, folder, "ended", "--detach", "--max-restarts", "1", pause_s=0.15).returncode == 0
    again = stratagem(cluster, folder, "fit", "net.py:Interrupted", "--run-dir", "out/ended", "--on", "slurm")
    assert again.returncode == 2
    assert "stop it first" in again.stderr
    wait_for(folder / "ended/pid.1")
    time.sleep(2)
    assert stratagem(cluster, folder, "stop", "ended").returncode == 2
    assert stratagem(cluster, folder, "stop", "out/ended").returncode == 0
    assert wait_until_over(cluster, folder, "ended")["state"] == "stopped"
    assert "saved" in output(folder, "ended")
    assert "requeued" not in output(folder, "ended")
    followed = stratagem(cluster, folder, "logs", "out/ended", "--follow")
    assert followed.returncode != 0
    assert "saved" in followed.stdout


def test_a_job_that_dies_is_followed_by_another(cluster: Cluster, folder: Path) -> None:
    done = fit(
        cluster,
        folder,
        "dies",
        *("--detach", "--max-restarts", "2"),
        *(
            "--set",
            'trainer.callbacks=[{"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 5}}]',
        ),
        pause_s=0.15,
    )
    assert done.returncode == 0, done.stderr
    wait_for(folder / "dies/pid.1")
    time.sleep(4)
    job = str(json.loads((folder / "out/dies/place/record.json").read_text())["job"]["job_id"])
    cluster.run("scancel", "--signal=KILL", f"{job}_0")
    found = wait_until_over(cluster, folder, "dies")
    assert found["state"] == "finished", output(folder, "dies")
    assert len(list((folder / "out/dies/place/output").iterdir())) == 2
    steps = (folder / "dies/steps.0").read_text().splitlines()
    assert 60 <= len(steps) < 90, "it began again at its beginning"
    assert set(steps) == {f"{epoch} {batch}" for epoch in (0, 1) for batch in range(30)}


def test_what_the_node_refuses_is_not_tried_again(cluster: Cluster, folder: Path) -> None:
    done = fit(cluster, folder, "refused", "--max-restarts", "2", "--accelerator", "mps")
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(list((folder / "out/refused/place/output").iterdir())) == 1


def test_what_slurm_refuses_leaves_nothing(cluster: Cluster, folder: Path) -> None:
    done = fit(cluster, folder, "none", "--on-set", "partition=nowhere")
    assert done.returncode == 2
    assert "sbatch refuses" in done.stderr
    assert "nowhere" in done.stderr or "partition" in done.stderr
    assert not (folder / "out").exists()
