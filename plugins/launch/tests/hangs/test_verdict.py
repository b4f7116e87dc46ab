"""Which rank a hang is laid to, from what all ranks have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratagem_launch.hangs.evidence import Collective, Evidence, Frame, read_collectives, read_stacks
from stratagem_launch.hangs.verdict import judge

USER = Frame("/home/me/net.py", 7, "training_step")
BACKWARD = Frame("/usr/lib/python3/torch/distributed/x.py", 9, "all_reduce")


def call(
    number: int, name: str = "all_reduce", shapes: str = "Float [5]", waiting: bool = False
) -> Collective:
    return Collective("default_pg", number, name, shapes, waiting)


def rank(number: int, *calls: Collective, stack: Frame = BACKWARD, **more: Any) -> Evidence:
    return Evidence(number, "host", 5, 9.0, stack=(stack,), collectives=calls, **more)


def test_the_rank_that_others_wait_for_is_named_with_its_place_and_the_collective():
    waiting = (call(1), call(2, waiting=True))
    verdict = judge([rank(0, *waiting), rank(1, call(1), stack=USER), rank(2, *waiting)], 9)
    assert verdict.ranks == (1,)
    assert verdict.sentence.startswith(
        "no step for 9 s: rank 1 on host stood at /home/me/net.py:7 in training_step, missing from all_reduce no. 2 "
        "of group default_pg (Float [5]), in which ranks 0, 2 wait at "
    )


def test_a_stopped_rank_comes_first():
    verdict = judge([rank(0, call(2, waiting=True)), rank(1, call(1), stack=USER, is_stopped=True)], 3)
    assert verdict.ranks == (1,)
    assert "stood still, stopped by a signal such as SIGSTOP, at /home/me/net.py:7" in verdict.sentence


def test_the_first_call_that_differs_counts_though_it_seemed_to_work():
    usual = (call(1, shapes="Float [7]"), call(2, waiting=True))
    verdict = judge([rank(0, *usual), rank(1, call(1, waiting=True)), rank(2, *usual)], 3)
    assert verdict.ranks == (1,)
    assert "rank 1 on host called all_reduce no. 1 of group default_pg (Float [5])" in verdict.sentence
    assert "the others called all_reduce no. 1 of group default_pg (Float [7])" in verdict.sentence


def test_of_two_ranks_that_differ_both_are_named():
    verdict = judge([rank(0, call(1, "barrier", "", True)), rank(1, call(1, waiting=True))], 3)
    assert verdict.ranks == (0, 1)


def test_gathered_tensors_may_differ_in_shape():
    both = [
        rank(0, call(1, "all_gather", "Byte [3]")),
        rank(1, call(1, "all_gather", "Byte [4]"), stack=USER),
    ]
    assert "different" not in judge(both, 3).sentence


def test_without_collectives_the_rank_that_does_not_wait_is_named():
    verdict = judge([rank(0), rank(1, stack=USER)], 3)
    assert verdict.ranks == (1,)


def test_a_rank_in_its_loader_stands_where_the_loaders_worker_does():
    loader = Frame("/usr/lib/python3/torch/utils/data/dataloader.py", 9, "_try_get_data")
    worker = (Frame("/home/me/data.py", 3, "__getitem__"),)
    stalled = rank(0, stack=loader, loader_stack=worker)
    assert stalled.place == "/home/me/data.py:3 in __getitem__, in a worker of its data loader"


def test_stacks_are_read_with_the_main_thread_first(tmp_path: Path) -> None:
    text = (
        'Thread 0x1 (most recent call first):\n  File "/a.py", line 1 in wait\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/b.py", line 2 in f\n'
        '  File "/c.py", line 3 in <module>\n'
    )
    (tmp_path / "stacks").write_text(text)
    stacks = read_stacks(str(tmp_path / "stacks"))
    assert stacks[0] == (Frame("/b.py", 2, "f"), Frame("/c.py", 3, "<module>"))
    assert read_stacks(str(tmp_path / "none")) == []


def test_collectives_of_groups_with_one_description_are_distinguished(tmp_path: Path) -> None:
    entry = {
        "collective_seq_id": 1,
        "record_id": 0,
        "profiling_name": "gloo:all_reduce",
        "input_dtypes": ["Float"],
        "input_sizes": [[2]],
        "retired": False,
        "is_p2p": False,
    }
    entries = [{**entry, "process_group": [str(number), "mesh_dp"]} for number in (3, 4)]
    (tmp_path / "dump").write_text(json.dumps({"entries": entries}))
    read = read_collectives(str(tmp_path / "dump"))
    assert [each.group for each in read] == ["mesh_dp 3", "mesh_dp 4"]
    assert read[0].is_waiting
    assert str(read[0]) == "all_reduce no. 1 of group mesh_dp 3 (Float [2])"
    assert read_collectives(str(tmp_path / "none")) == ()
