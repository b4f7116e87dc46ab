"""A manifest's pods, run here from the manifest alone, train to the numbers of one process."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in_pods import StandInPods, expanded
from stratagem_kubernetes import KubernetesPlace
from stratagem_kubernetes.archive import pack
from stratagem_kubernetes.pods import literal
from stratagem_places import PlaceRequest

pytestmark = pytest.mark.timeout(240)
STEPS, GLOBAL_BATCH = 6, 8
NET = """
import json, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import stratagem


class Net(stratagem.Module):
    def __init__(self, batch_size: int = 8, said: str = "", wait_s: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.batch_size, self.wait_s = batch_size, wait_s
        if said:
            with open(said, "w") as file:
                json.dump(dict(os.environ), file)

    def training_step(self, batch, batch_idx):
        time.sleep(self.wait_s)
        loss = (self.layer(batch[0]) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        torch.manual_seed(3)
        return DataLoader(TensorDataset(torch.randn(64, 4)), self.batch_size, shuffle=True)
"""
EACH = ("--accelerator", "cpu", "--seed", "7", "--set", "trainer.log_every_n_steps=1")


def losses(run_dir: Path) -> list[float]:
    with (run_dir / "metrics.csv").open() as lines:
        return [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]


@pytest.fixture
def request_of(tmp_path: Path) -> PlaceRequest:
    code = tmp_path / "snapshot" / "project"
    code.mkdir(parents=True)
    (code / "net.py").write_text(NET)
    run_dir = tmp_path / "runs here" / "first_run"
    return PlaceRequest(
        stage="fit",
        words=(),
        run_dir=str(run_dir),
        code_dir=str(tmp_path / "snapshot"),
        subfolder="project",
        devices=1,
        accelerator="cpu",
    )


def stand_in(place: KubernetesPlace, request: PlaceRequest, tmp_path: Path, **how: dict) -> StandInPods:
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(pack(request.code_dir))
    return StandInPods(place.render(request), archive, **how)


@pytest.mark.parametrize(
    "form", ["trainjob", *(pytest.param(form, marks=pytest.mark.long) for form in ("job", "jobset"))]
)
def test_two_pods_train_as_one_process(form: str, request_of: PlaceRequest, tmp_path: Path) -> None:
    there = tmp_path / "pod"
    words = ("net.py:Net", "--strategy", "ddp", "--num-nodes", "2", "--devices", "1", *EACH)
    words += ("--max-steps", str(STEPS), "--set", f"model.batch_size={GLOBAL_BATCH // 2}")
    words += ("--set", f"model.said={tmp_path}/$(HOME) said")
    request = replace(request_of, words=words, min_nodes=2, max_nodes=2)
    place = KubernetesPlace(
        image="here",
        form=form,
        mount=str(there),
        pvc="runs",
        secrets=["TOKEN=wandb/key"],
        env=["GREETING=$(HOME)!"],
    )
    pods = stand_in(place, request, tmp_path, secrets={"wandb": {"key": "never in a manifest"}})
    assert "never in" not in pods.manifest
    assert pods.count == 2
    started = [pods.start(index) for index in range(2)]
    printed = [each.communicate(timeout=200)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0], "\n".join(printed)

    alone = (sys.executable, "-m", "stratagem", "fit", "net.py:Net", "--strategy", "single", *EACH)
    alone += (
        "--max-steps",
        str(STEPS),
        "--set",
        f"model.batch_size={GLOBAL_BATCH}",
        "--run-dir",
        str(tmp_path / "alone"),
    )
    subprocess.run(alone, cwd=tmp_path / "snapshot" / "project", check=True, capture_output=True)
    mine = losses(there / "runs" / "first_run")
    assert len(mine) == STEPS
    assert mine == pytest.approx(losses(tmp_path / "alone"), abs=1e-6)
    environ = json.loads((tmp_path / "$(HOME) said").read_text())
    assert environ["TOKEN"] == "never in a manifest"
    assert environ["GREETING"] == "$(HOME)!"


@pytest.mark.long
def test_a_pod_that_is_asked_to_stop_saves_and_the_next_goes_on(
    request_of: PlaceRequest, tmp_path: Path
) -> None:
    words = ("net.py:Net", *EACH, "--max-steps", "20", "--set", "model.wait_s=0.3", "--grace-period", "40")
    request = replace(request_of, words=words, grace_period_s=40)
    pods = stand_in(KubernetesPlace(image="here", mount=str(tmp_path / "pod"), pvc="runs"), request, tmp_path)
    assert pods.pod["terminationGracePeriodSeconds"] == 55
    first = pods.start(0)
    table = tmp_path / "pod" / "runs" / "first_run" / "metrics.csv"
    deadline = time.monotonic() + 200
    while not (table.exists() and len(table.read_text().splitlines()) > 2) and time.monotonic() < deadline:
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    printed, _ = first.communicate(timeout=200)
    assert first.returncode == 75, printed
    [fails, ignored, disrupted] = pods.documents["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert (fails["action"], fails["onExitCodes"]["values"]) == ("FailJob", [2])
    assert (ignored["action"], ignored["onExitCodes"]["values"]) == ("Ignore", [75])
    assert disrupted["action"] == "Ignore"
    again = pods.start(0)
    printed, _ = again.communicate(timeout=100)
    assert again.returncode == 0, printed
    assert len(losses(table.parent)) == 20


def test_what_kubernetes_would_replace_reaches_the_program_as_it_was() -> None:
    for text in ("$(HOME)", "$$", "$", "$(A$(B))", "a$$(HOME)b"):
        assert expanded(literal(text), {"HOME": "/root"}) == text
