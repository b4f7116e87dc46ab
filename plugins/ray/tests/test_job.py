"""A run that is submitted as a job of Ray's own, to a real cluster. `make test-ray` installs Ray and runs this."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: make test-ray")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

NET = """
import stratagem, torch

class Net(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
"""


def submitted(client: Any, command: str, code: Path) -> str:
    """Submit as soon as the cluster takes jobs, which is some time after it has begun."""
    for _ in range(60):
        try:
            job: str = client.submit_job(entrypoint=command, runtime_env={"working_dir": str(code)})
            return job
        except RuntimeError as error:
            if "No available agent" not in str(error):
                raise
            time.sleep(1)
    raise AssertionError("no agent of the cluster came")


def test_ray_job_submit_trains_on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster
    from ray.job_submission import JobSubmissionClient

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("HOME", str(tmp_path))
    code = tmp_path / "code"
    code.mkdir()
    (code / "net.py").write_text(NET)
    node = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
        flags = "--strategy ddp --accelerator cpu --devices 1 --num-nodes 2 --max-epochs 1"
        place = f"--on ray --on-set strategy=PACK --run-dir {tmp_path / 'run'}"
        command = f"{sys.executable} -m stratagem fit net.py:Net {flags} {place}"
        job = submitted(client, command, code)
        deadline = time.monotonic() + 200
        while not (status := client.get_job_status(job)).is_terminal():
            assert time.monotonic() < deadline, client.get_job_logs(job)
            time.sleep(0.5)
        assert str(status) == "SUCCEEDED", client.get_job_logs(job)
        # Of four batches each of the two nodes had two.
        assert (tmp_path / "run" / "checkpoints" / "epoch=0-step=2").is_dir()
    finally:
        cluster.shutdown()
