"""Ranks without a launcher report a hang themselves, and one of them for all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

from stratagem_launch.hangs.files import RankFiles, write_whole
from stratagem_launch.restart_states import LAUNCH_VARIABLE

RANK = """
import sys, time
from stratagem_launch.hangs import heartbeat
heartbeat.recorded_collectives = lambda: "{}"  # without an import of torch
rank, folder, settle_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
heartbeat._SETTLE_S = settle_s
with heartbeat.Heartbeat(0.2, rank, 2, folder):
    time.sleep(600)
"""


def start(rank: int, folder: Path, settle_s: float) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != LAUNCH_VARIABLE}
    command = [sys.executable, "-c", RANK, str(rank), str(folder), str(settle_s)]
    return subprocess.Popen(command, stderr=PIPE, env=environ, text=True)


def test_no_rank_ends_before_the_one_that_reports(tmp_path: Path) -> None:
    """The elastic agent ends all as soon as one has ended, and no report would be written."""
    slow = start(0, tmp_path, 3.0)
    try:
        while not list(tmp_path.glob("hang/collectives.0.*")):
            assert slow.poll() is None
            time.sleep(0.01)
        quick = start(1, tmp_path, 0.0)
        assert quick.wait(200) == 1
        assert list(tmp_path.glob("hang/reported.0.*"))
        assert slow.wait(200) == 1
    finally:
        slow.kill()
    assert "Error: " in slow.communicate()[1]
    assert "Error: " not in quick.communicate()[1]
    assert len(list(tmp_path.glob("hang-*.txt"))) == 1


def test_what_a_former_process_of_the_rank_has_left_is_forgotten(tmp_path: Path) -> None:
    former = RankFiles(str(tmp_path / "hang"), 1, 1)
    (tmp_path / "hang").mkdir()
    note = f'{{"rank": 1, "pid": 1, "host": "gone", "timeout_s": 1, "report_dir": "{tmp_path}", "world_size": 2}}'
    write_whole(former.note, note)
    alone = start(1, tmp_path, 0.0)
    assert alone.wait(200) == 1
    assert "gone" not in alone.communicate()[1]
    (report,) = tmp_path.glob("hang-*.txt")
    assert "gone" not in report.read_text()
