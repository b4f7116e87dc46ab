"""`ranks`: a function of a test file in real processes of a gloo group, forked in some hundredths of a second."""

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Outcome:
    codes: list  # exit codes, negative for a signal
    results: list  # what each rank returned, or its traceback


@pytest.fixture(scope="session")
def fork_host():
    command = [sys.executable, str(Path(__file__).parent / "fork_host.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        process.wait(timeout=120)


@pytest.fixture
def ranks(fork_host, tmp_path_factory):
    """Call a module-level function of a test file in real processes: `ranks(function, world_size, **json)`.

    The function gets the rank's collectives and the keyword arguments. With check=False an Outcome is
    returned, otherwise the results by rank.
    """

    def call(function, world_size, *, check=True, **arguments):
        folder = tmp_path_factory.mktemp("ranks")
        request = {
            "file": function.__code__.co_filename,
            "function": function.__name__,
            "world_size": world_size,
            "arguments": arguments,
            "folder": str(folder),
        }
        fork_host.stdin.write(json.dumps(request) + "\n")
        fork_host.stdin.flush()
        codes = json.loads(fork_host.stdout.readline())
        results = []
        for rank in range(world_size):
            file = folder / f"result-{rank}"
            results.append(pickle.loads(file.read_bytes()) if file.exists() else None)
        if not check:
            return Outcome(codes, results)
        assert codes == [0] * world_size, "\n".join(str(result) for result in results)
        return results

    return call
