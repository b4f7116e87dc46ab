"""Call the command line, and open checkpoints, with what a seed makes: `python -m tests.fuzz.run --seconds 60`.

Everything is real but the start of processes and of training, at which a case ends. A case fails where
an exception comes out, where the exit code is none of 0 and 2, where a refusal isn't one sentence, where
something was written, or where it takes more than 5 s of CPU. In the end the process must have stayed
below 1 GB. A failure names its seed: `--seed N --cases 1` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Case, case, checkpoint_files, damaged

LONGEST_S, LARGEST_MB = 5.0, 1024
NET = """
import torch
import stratagem

class Net(stratagem.Module):
    def __init__(self, hidden: int = 4, lr: float = 0.1, name: str = "net"):
        super().__init__()

def make_net(hidden: int = 3):
    return Net(hidden)

NUMBER = 3
"""


def main() -> int:
    """Run cases until the time is over; returns 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    signal.signal(signal.SIGALRM, _too_long)
    failures, done = 0, 0
    with tempfile.TemporaryDirectory() as folder, _nothing_is_launched():
        work, saved = Path(folder, "work"), Path(folder, "saved")
        _save(saved)
        work.mkdir()
        os.chdir(work)
        (work / "net.py").write_text(NET)
        _call(Case(["fit", "net.py:Net"]), work)  # imports, which aren't counted
        until = time.monotonic() + options.seconds
        for seed in range(options.seed, options.seed + options.cases):
            if time.monotonic() > until:
                break
            wrong = _call(case(seed), work) if seed % 4 else _open(seed, saved, Path(folder, "damaged"))
            done += 1
            if wrong:
                failures += 1
                print(f"seed {seed}: {wrong}", flush=True)
        os.chdir(folder)
    used_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{done} cases from seed {options.seed}, {failures} failed, {used_mb} MB at most")
    return int(failures > 0 or used_mb > LARGEST_MB)


def _call(made: Case, work: Path) -> str:
    """Call the command line; returns what is wrong, empty for nothing."""
    from stratagem_cli.main import main as stratagem

    for name, content in made.files.items():
        (work / name).write_bytes(content)
    before, environ, path = _listed(work), dict(os.environ), list(sys.path)
    os.environ.update(made.environ)
    said, began = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"), time.process_time()
    signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code: object = stratagem(made.arguments)
    except BaseException as error:
        code = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = path
    said.flush()
    lines = said.buffer.getvalue().decode().rstrip().splitlines()
    took_s, after = time.process_time() - began, _listed(work)
    for name in made.files:
        (work / name).unlink()
    reported = f"{[word[:200] for word in made.arguments]} {made.environ} {made.files}"[:1500]
    if code not in (0, 2):
        return f"came to {code}: {reported}"
    if code == 2 and not (lines and lines[-1].startswith("Error: ") and len(lines[-1]) < 3000):
        return f"isn't reported in one sentence, but {lines[-1:]}: {reported}"
    if after != before:
        return f"wrote {sorted(after ^ before)}: {reported}"
    return f"took {took_s:.1f} s: {reported}" if took_s > LONGEST_S else ""


def _open(seed: int, saved: Path, copy: Path) -> str:
    """Open a checkpoint of which one file was damaged, and read it."""
    import torch
    from stratagem_checkpoint.directory import DirectoryCheckpointer

    from stratagem.collectives.local import LocalCollectives
    from stratagem.errors import CheckpointError

    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(saved, copy)
    files = checkpoint_files(copy)
    doomed = files[seed // 4 % len(files)]
    doomed.write_bytes(damaged(seed, doomed.read_bytes()))
    began = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(str(copy))
        reader.rank_state(0)
        reader.read({"model/weight": torch.empty(8, 4), "model/bias": torch.empty(8)})
    except CheckpointError:
        pass
    except BaseException as error:
        last = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:])
        return f"the checkpoint's {doomed.name} came to {last}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = time.process_time() - began
    return f"the checkpoint's {doomed.name} took {took_s:.1f} s" if took_s > LONGEST_S else ""


def _save(path: Path) -> None:
    import torch
    from stratagem_checkpoint.directory import DirectoryCheckpointer

    from stratagem.checkpoint.base import Checkpoint
    from stratagem.collectives.local import LocalCollectives

    tensors = {"model/weight": torch.rand(8, 4), "model/bias": torch.rand(8)}
    state = {"progress": {"epoch": 1, "step": 10}, "user": {"names": ["a", "b"], "rate": 0.1}}
    rank_state = {"rng": torch.get_rng_state()}
    DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).save(
        str(path), Checkpoint(tensors, state, rank_state)
    )


@contextlib.contextmanager
def _nothing_is_launched() -> Iterator[None]:
    """End every launch where processes or training would start; the module's settings are typed there."""
    from stratagem_launch import ElasticLauncher

    from stratagem.launchers.in_process import InProcessLauncher

    def stop(launcher: Any, task: Any) -> None:
        for argument in task.args:
            for part in argument if isinstance(argument, tuple) else ():
                resolved = getattr(getattr(part, "module", None), "resolved", None)
                if resolved is not None:
                    resolved()

    kept = ElasticLauncher.launch, InProcessLauncher.launch, vars(ElasticLauncher)["preload"]
    ElasticLauncher.launch = InProcessLauncher.launch = stop  # type: ignore[method-assign,assignment]  # patched
    ElasticLauncher.preload = lambda *_: None  # type: ignore[method-assign]  # patched
    try:
        yield
    finally:
        launch, in_process_launch, preload = kept
        ElasticLauncher.launch, ElasticLauncher.preload = launch, preload  # type: ignore[method-assign]  # restored
        InProcessLauncher.launch = in_process_launch  # type: ignore[method-assign]  # restored


def _listed(work: Path) -> set[tuple[str, int]]:
    found = (path for path in work.rglob("*") if "__pycache__" not in path.parts)
    return {(str(path.relative_to(work)), path.lstat().st_mtime_ns) for path in found}


def _too_long(*_: object) -> None:
    raise TimeoutError("30 s are over")


if __name__ == "__main__":
    sys.exit(main())
