"""Launchers that are killed and launchers that join, as processes of their own on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_nodes import EVERY, MODULE, SAMPLES, Nodes, check_each_sample_once

# Restarting takes its time on a busy machine.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    started.end()


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_fully_sharded"])
def test_when_a_launcher_is_killed_the_other_goes_on_alone(nodes: Nodes, strategy: str) -> None:
    stays = nodes.start(
        "--num-nodes", "1:2", "--max-restarts", "2", "--node-rank", "0", "--strategy", strategy
    )
    goes = nodes.start(
        "--num-nodes", "1:2", "--max-restarts", "2", "--node-rank", "1", "--strategy", strategy
    )
    nodes.wait_until(lambda: any(size == 2 and step > EVERY for _, size, step, *_ in nodes.seen()))
    goes.send_signal(signal.SIGKILL)
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    nodes.go()
    assert stays.wait(180) == 0, nodes.output()
    check_each_sample_once(nodes, 2, 1)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.long),
        pytest.param("fsdp", marks=pytest.mark.soak),
        pytest.param("ddp_sharded", marks=pytest.mark.soak),
        pytest.param("fairscale_sharded", marks=pytest.mark.soak),
    ],
)
def test_the_global_batch_stays_while_launchers_go_and_join(nodes: Nodes, strategy: str) -> None:
    """Two ranks, then one, then two: each step has the samples that it has in one process, and its numbers."""
    flags = ("--num-nodes", "1:2", "--max-restarts", "2", "--global-batch-size", "8", "--strategy", strategy)
    stays = nodes.start(*flags, "--node-rank", "0")
    goes = nodes.start(*flags, "--node-rank", "1")
    nodes.wait_until(lambda: any(size == 2 and step > EVERY for _, size, step, *_ in nodes.seen()))
    goes.send_signal(signal.SIGKILL)
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    comes = nodes.start(*flags, "--node-rank", "1")
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert stays.wait(180) == 0, nodes.output()
    assert comes.wait(60) == 0, nodes.output()
    check_each_sample_once(nodes, 2, 1, 2)
    compare_with_one_process(nodes, ("--global-batch-size", "8"), SAMPLES // 8)


def compare_with_one_process(nodes: Nodes, flags: tuple[str, ...], steps: int) -> None:
    """Each step had the samples that it has in one process, and the net was the same before it."""
    elastic = last_tries(nodes)
    for path in nodes.folder.glob("seen.*"):
        path.unlink()
    nodes.go()
    assert nodes.start(*flags, "--run-dir", "alone").wait(120) == 0, nodes.output()
    alone = last_tries(nodes)
    assert sorted(alone) == list(range(steps))
    assert {step: numbers for step, (numbers, _) in elastic.items()} == {s: n for s, (n, _) in alone.items()}
    for step, (_, answer) in alone.items():
        assert elastic[step][1] == pytest.approx(answer, abs=1e-6), step


def last_tries(nodes: Nodes) -> dict[int, tuple[list[int], float]]:
    """Step → the samples that all ranks trained on in the last attempt at it, and what the net said before."""
    latest: dict[int, int] = {}
    for attempt, _, step, *_ in nodes.seen():
        latest[step] = max(attempt, latest.get(step, 0))
    tries: dict[int, tuple[list[int], float]] = {}
    for attempt, _, step, numbers, answer in nodes.seen():
        if attempt == latest[step]:
            tries[step] = (sorted(tries.get(step, ([], 0.0))[0] + numbers), answer)
    return tries


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.long),
        pytest.param("diloco", marks=pytest.mark.long),
        pytest.param("fsdp", marks=pytest.mark.soak),
        pytest.param("ddp_sharded", marks=pytest.mark.soak),
        pytest.param("fairscale_sharded", marks=pytest.mark.soak),
    ],
)
def test_when_a_launcher_joins_both_go_on_together(nodes: Nodes, strategy: str) -> None:
    flags = ("--num-nodes", "1:2", "--max-restarts", "0", "--strategy", strategy)
    first = nodes.start(*flags, LOGLEVEL="WARNING")
    nodes.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    second = nodes.start(*flags)
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert first.wait(180) == 0, nodes.output()
    assert second.wait(60) == 0, nodes.output()
    check_each_sample_once(nodes, 1, 2)
    # The first one's rank saved and ended by itself: torch's agent kills those that don't, after 30 s.
    assert "Closing process" in nodes.log(0).read_text()
    assert "forcefully exiting" not in nodes.log(0).read_text()


@pytest.mark.long
def test_a_worker_that_is_killed_comes_back_and_goes_on_from_the_newest_checkpoint(nodes: Nodes) -> None:
    node = nodes.start("--max-restarts", "1", "--devices", "2")
    nodes.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    first = {int(path.suffix[1:]) for path in nodes.folder.glob("seen.*")}
    os.kill(min(first), signal.SIGKILL)
    nodes.go()
    assert node.wait(120) == 0, nodes.output()
    check_each_sample_once(nodes, 2, 2)
    assert (nodes.folder / "run" / "checkpoints" / "last").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-nodes", "3:2"], "a minimum that is larger than its maximum"),
        (["--num-nodes", "0:2"], "at least 1 must take part"),
        (["--num-nodes", "1:two"], "is not a number of machines"),
        (["--num-nodes", "0"], "at least 1 must take part"),
        (["--num-nodes", "1:2", "--strategy", "ddp"], "2 nodes need a rendezvous"),
        (
            ["--num-nodes", "1:2", "--strategy", "ddp2"],
            "a number of nodes that changes while it runs",
        ),
        (["--num-nodes", "1:2", "--strategy", "ddp", "--rdzv-conf", "soon"], "write KEY=VALUE"),
    ],
)
def test_bad_numbers_of_nodes_end_with_a_sentence_and_code_2(
    tmp_path: Path, flags: list[str], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratagem_cli.main import main

    (tmp_path / "net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    command = [
        "fit",
        "net.py:Net",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
        "--set",
        "model.folder=.",
        *flags,
    ]
    monkeypatch.setattr(sys, "argv", ["stratagem", *command])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main())
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())
