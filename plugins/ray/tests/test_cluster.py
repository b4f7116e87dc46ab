"""Runs on a real Ray cluster of two nodes, on this machine. `make test-ray` installs Ray and runs these."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_nodes import EVERY, MODULE, Nodes, check_each_sample_once
from stratagem_places import PlacedRun, PlaceRequest, PlaceStatus
from stratagem_ray import RayPlace

pytest.importorskip("ray", reason="needs Ray: make test-ray")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SOON = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes with a CPU each; the head has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def request_of(nodes: Nodes, *words: str, **keywords: Any) -> PlaceRequest:
    run_dir, code = nodes.folder / "run", nodes.folder / "code"
    (run_dir / "place" / "output").mkdir(parents=True)
    code.mkdir()
    shutil.copy(nodes.folder / "every.yaml", code)
    logged = "loss = (self.layer(x) ** 2).mean()\n        self.log('loss', loss)\n        return loss"
    (code / "net.py").write_text(MODULE.replace("return (self.layer(x) ** 2).mean()", logged))
    flags = (
        "net.py:Net",
        "--config",
        "every.yaml",
        "--strategy",
        "ddp",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
    )
    flags += ("--max-epochs", "1", "--seed", "3", "--set", f"model.folder={nodes.folder}")
    flags += ("--set", "trainer.enable_progress_bar=false", "--set", "strategy.start_method=fork")
    flags += ("--set", "trainer.log_every_n_steps=1")
    return PlaceRequest(
        stage="fit",
        words=(*flags, *words),
        run_dir=str(run_dir),
        code_dir=str(code),
        devices=1,
        accelerator="cpu",
        **keywords,
    )


class Placed:
    """A submitted run."""

    def __init__(self, cluster: Any, request: PlaceRequest) -> None:
        self.place = RayPlace(address=cluster.address)
        self.run = PlacedRun(run_dir=request.run_dir, place="ray", job=self.place.submit(request))

    def wait_until(self, holds: Callable[[], bool], within_s: float = 150) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, self.printed()
            assert not self.place.status(self.run).is_over, self.printed()
            time.sleep(0.2)

    def ended(self, within_s: float = 150) -> PlaceStatus:
        deadline = time.monotonic() + within_s
        while not (status := self.place.status(self.run)).is_over:
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.2)
        return status

    def printed(self) -> str:
        return "".join(self.place.logs(self.run))


def raylet_of(pid: int) -> int:
    """The process of the Ray node that a rank runs on."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return int(next(entry for entry in variables if entry.startswith("RAY_RAYLET_PID=")).partition("=")[2])


def test_a_node_that_is_killed_leaves_the_other_and_one_that_comes_joins(cluster: Any, nodes: Nodes) -> None:
    words = ("--num-nodes", "1:2", "--max-restarts", "3", "--rdzv-conf", SOON)
    placed = Placed(cluster, request_of(nodes, *words, min_nodes=1, max_nodes=2, max_restarts=3))
    placed.wait_until(lambda: any(size == 2 and step > EVERY for _, size, step, *_ in nodes.seen()))
    assert placed.place.status(placed.run).detail == "2 of 2 nodes"
    raylets = {raylet_of(int(path.suffix[1:])) for path in nodes.folder.glob("seen.*")}
    assert len(raylets) == 2
    by_raylet = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
    cluster.remove_node(by_raylet[min(raylets)], allow_graceful=False)
    placed.wait_until(lambda: nodes.seen_last() == 1)
    cluster.add_node(num_cpus=1)
    placed.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert placed.ended() == PlaceStatus("finished", "", 0), placed.printed()
    assert "was lost: " in placed.printed()
    check_each_sample_once(nodes, 2, 1, 2)


def test_a_run_that_is_stopped_saves_on_both_nodes_and_goes_on(cluster: Any, nodes: Nodes) -> None:
    request = request_of(nodes, "--num-nodes", "2", min_nodes=2, max_nodes=2)
    placed = Placed(cluster, request)
    placed.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    placed.place.stop(placed.run)
    status = placed.ended()
    assert (status.state, status.exit_code) == ("stopped", 75), placed.printed()
    saved = os.listdir(os.path.join(request.run_dir, "checkpoints"))
    assert any(name.startswith("preempted-step=") for name in saved), saved
    steps = len({step for _, _, step, *_ in nodes.seen()})
    nodes.go()
    again = Placed(cluster, request)
    assert again.ended().exit_code == 0, again.printed()
    assert len({step for _, _, step, *_ in nodes.seen()}) == 30 > steps
    assert (Path(request.run_dir) / "metrics.csv").exists()
    assert "\nloss " in again.printed()
    assert "layer" in "".join(again.place.logs(again.run, rank=0))


def test_what_a_launcher_refuses_is_the_run_s_end(cluster: Any, nodes: Nodes) -> None:
    placed = Placed(cluster, request_of(nodes, "--set", "model.nonsense=1"))
    status = placed.ended()
    assert (status.state, status.exit_code) == ("failed", 2), placed.printed()
    assert "nonsense" in placed.printed()


def test_what_a_run_waits_for_is_said_where_ray_finds_no_room(cluster: Any, nodes: Nodes) -> None:
    placed = Placed(cluster, request_of(nodes, "--num-nodes", "4", min_nodes=4, max_nodes=4))
    said = "waits for room: 4 nodes with CPU 1, each on its own machine; machines of the cluster: "
    placed.wait_until(lambda: said in placed.printed())
    assert "--on-set strategy=PACK lets them share machines" in placed.printed()
    placed.place.stop(placed.run)
    assert placed.ended().state == "stopped", placed.printed()


def test_no_cluster_at_an_address_is_a_clear_error(cluster: Any) -> None:
    assert RayPlace(address=cluster.address).why_not() is None
    said = RayPlace(address="127.0.0.1:1").why_not()
    assert said is not None
    assert said.startswith("no Ray cluster answers at address='127.0.0.1:1' (")
