"""What gloo reports while groups connect isn't printed; all other output is, whatever printed it."""

import os
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist

from stratagem.collectives import connecting
from stratagem.collectives.connecting import quiet_connecting

REPORT = b"[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
SHORT = b"[Gloo] Rank 1 is connected to 1 peer ranks. Rank 1 is NOT connected to: [2]\n"


@pytest.fixture(autouse=True)
def _any_torch_may_report(monkeypatch):
    monkeypatch.setattr(connecting, "SILENT_SINCE", (1000,))


def test_only_the_report_is_dropped(capfd):
    print("before", flush=True)
    with quiet_connecting():
        os.write(1, b"half a line, " + REPORT + REPORT)
        os.write(1, b"inside\n")
        assert capfd.readouterr().out == "before\n"
        os.write(1, SHORT)
    print("after", flush=True)
    assert capfd.readouterr().out == f"half a line, inside\n{SHORT.decode()}after\n"


def test_an_error_leaves_standard_output_as_it_was(capfd):
    def fail():
        os.write(1, b"one\n" + REPORT)
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"), quiet_connecting():
        fail()
    os.write(1, b"two\n")
    assert capfd.readouterr().out == "one\ntwo\n"


def test_threads_connect_at_once(capfd):
    both, first_is_out = threading.Barrier(2), threading.Event()

    def second():
        with quiet_connecting():
            both.wait(120)
            first_is_out.wait(120)
            os.write(1, REPORT + b"second\n")

    thread = threading.Thread(target=second)
    thread.start()
    with quiet_connecting():
        both.wait(120)  # both are in there
        os.write(1, REPORT + b"first\n")
    first_is_out.set()
    thread.join(120)
    assert capfd.readouterr().out == "first\nsecond\n"


def test_a_closed_standard_output_is_no_error():
    code = (
        "import os; from stratagem.collectives import connecting; connecting.SILENT_SINCE = (1000,)\n"
        "os.close(1)\n"
        "with connecting.quiet_connecting(): pass\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_a_group_of_this_torch_says_nothing(capfd, monkeypatch):
    monkeypatch.undo()
    with quiet_connecting():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    assert capfd.readouterr().out == ""
