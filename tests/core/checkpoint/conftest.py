import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from stratagem.checkpoint import DirectoryCheckpointer
from stratagem.collectives.local import LocalCollectives


@pytest.fixture
def checkpointer():
    """A checkpointer of one process."""
    return DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))


@dataclass
class Outcome:
    codes: list  # exit codes, negative for a signal
    results: list  # what each rank returned, or its traceback


@pytest.fixture(scope="session")
def _host():
    command = [sys.executable, str(Path(__file__).parent / "fork_host.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        process.wait(timeout=30)


@pytest.fixture
def ranks(_host, tmp_path_factory):
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
        _host.stdin.write(json.dumps(request) + "\n")
        _host.stdin.flush()
        codes = json.loads(_host.stdout.readline())
        results = []
        for rank in range(world_size):
            file = folder / f"result-{rank}"
            results.append(pickle.loads(file.read_bytes()) if file.exists() else None)
        if not check:
            return Outcome(codes, results)
        assert codes == [0] * world_size, "\n".join(str(result) for result in results)
        return results

    return call
