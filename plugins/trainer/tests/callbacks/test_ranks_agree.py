"""Ranks that see different metrics decide alike: real processes over gloo."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

SUPPORT = str(Path(__file__).parents[4] / "tests/support")


def test_two_ranks_with_different_metrics_keep_stop_and_fail_alike(tmp_path):
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120)
    )
    script = str(Path(__file__).with_name("two_ranks.py"))
    workers = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(store.port), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SUPPORT},
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    first, second = (json.loads(out) for out, _ in outputs)
    assert first == second
    assert first["best"] == str(tmp_path / "checkpoints" / "1-1.0")
    assert first["score"] == 1.0
    assert first["kept"] == [str(tmp_path / "checkpoints" / name) for name in ("1-1.0", "2-2.0")]
    assert first["stopped"] == [True, 3]
    assert "'val_los'" in first["error"]
    assert "val_loss" in first["error"]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["1-1.0", "2-2.0", "3-2.0", "last"]
    # Said once, by rank 0.
    assert [err.count("Stopping in epoch 4") for _, err in outputs] == [1, 0]
