"""`stratagem report --follow`: the page of a run that goes on, in a real browser, and who doesn't get it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from records import row, write_rank

STEP = row(forward=10)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A run's folder, and the address of its page."""
    run = tmp_path / "run"
    write_rank(run, [STEP] * 20, end=None)
    (run / "metrics.csv").write_text("step,epoch,loss\n10,0,2.5\n20,0,1.5\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "stratagem", "report", "--follow", str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield run, process.stdout.readline().split()[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_page_follows_the_run(browser: Any, served: tuple[Path, str]) -> None:
    run, url = served
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(url)
    assert "20 steps on 1 rank" in page.inner_text("main")
    assert "was killed, or still runs" in page.inner_text("main")
    page.evaluate("stratagemReport.drawn.get('metric loss').plot.setScale('x', {min: 12, max: 18})")
    write_rank(run, [STEP] * 70)
    with open(run / "metrics.csv", "a") as file:
        file.write("70,1,0.5\n")
    page.get_by_text("70 steps on 1 rank").first.wait_for(timeout=60_000)
    assert "last: 0.5" in page.inner_text("main")
    assert "ended well" in page.inner_text("main")
    assert page.evaluate("stratagemReport.drawn.get('metric loss').plot.data[0]") == [10, 20, 70]
    scale = "(scale => [scale.min, scale.max])(stratagemReport.drawn.get('metric loss').plot.scales.x)"
    assert page.evaluate(scale) == [12, 18]
    assert failed == []
    page.close()


def _status(url: str, path: str, host: str | None = None) -> int:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert (answer.status == 200) == (b"20 steps" in body)
    return answer.status


def test_only_who_has_the_address_gets_the_page(served: tuple[Path, str]) -> None:
    _, url = served
    path = urlsplit(url).path
    assert len(path) > 32
    assert _status(url, path) == 200
    for wrong in ("/", path[:-1], path[:-2] + "/", f"{path}x", f"/x{path}"):
        assert _status(url, wrong) == 404
    assert _status(url, path, host="somewhere.example") == 404
    assert urlsplit(url).hostname == "127.0.0.1"


def test_what_is_refused(refused: Any, folder: Path) -> None:
    assert refused("report", "--follow", "a").startswith("there is no run folder a")
    write_rank(folder / "a", [STEP] * 20)
    assert refused("report", "--follow", "a", "--output", "x").startswith("--follow serves the page")
    assert refused("report", "a", "--port", "9").startswith("--port is for --follow")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port {port} can't be used: {os.strerror(98)}" in refused(
            "report", "--follow", "a", "--port", str(port)
        )
