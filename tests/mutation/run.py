"""Change one place of a module at a time, and see whether its tests notice: `make mutate`.

    python -m tests.mutation.run --only data checkpoint --sample 25 --seed 7

The working tree is never changed: the sources and tests are copied to a temporary folder. A mutant is
killed when a test fails, or when one takes longer than any does without it. The tests of a mutant run in
a fork of a process that has imported torch, but nothing of ours. Exit code: 1 where less than 90 % of a
target's mutants are killed, 2 where its tests fail without a mutant.

With `--waits` (`make mutate-sim`), a mutant is a module without one of its waits for a device, and tests on the
simulated device are to notice it: 90 % of all.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation.mutants import Mutant, equivalents, is_equivalent, mutants_of
from tests.mutation.targets import SLOW, TARGETS, WAIT_TARGETS, Target
from tests.mutation.waits import waits_of

ROOT = Path(__file__).parents[2]
COPIED = ("core", "plugins", "tests", "docs/reference", "conftest.py", "pyproject.toml")
ENOUGH = 0.9
TEST_S = 90
"""A mutant may loop for ever: no test takes so long without one."""
SIM_S = 600
ARGUMENTS = ("-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_S}")


def main() -> int:
    """Mutate what the arguments name, and print what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--waits", action="store_true", help="remove waits for a device, on the simulated one"
    )
    targets = WAIT_TARGETS if "--waits" in sys.argv else TARGETS
    names = [target.name for target in targets]
    parser.add_argument(
        "--only", nargs="*", choices=names, default=names, metavar="TARGET", help=f"of {names}"
    )
    parser.add_argument("--sample", type=int, help="mutants per target, chosen at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    options = parser.parse_args()
    _import_early()
    rows, is_enough, tried_in_all, killed_in_all = [], True, 0, 0
    with tempfile.TemporaryDirectory(prefix="stratagem-mutation-") as folder:
        copy = _copied(Path(folder, "copy"))
        for target in (target for target in targets if target.name in options.only):
            began = time.monotonic()
            paths = target.paths(copy)
            if _tested(copy, target, target.all_tests(copy), 1800) != 0:
                print((copy / "tests.log").read_text(), file=sys.stderr)
                print(f"{target.name}: its tests fail without a mutant", file=sys.stderr)
                return 2
            limit_s = 30 + 5 * (time.monotonic() - began)
            sources = {path: (copy / path).read_text() for path in paths}
            if target.on_sim:
                mutants = [
                    each
                    for path, source in sources.items()
                    for each in waits_of(path, source)
                    if not is_equivalent(each, equivalents(path))
                ]
            else:
                mutants = mutants_of(sources, options.sample, options.seed)
            print(f"{target.name}: {len(mutants)} mutants, seed {options.seed}", flush=True)
            killed = 0
            for tried, mutant in enumerate(mutants, 1):
                if _survives(copy, target, mutant, limit_s):
                    print(
                        f"  no. {tried} survived: {mutant.path}:{mutant.line}, {mutant.operator} {mutant.occurrence}"
                    )
                    print(f"    - {mutant.before}\n    + {mutant.after}", flush=True)
                else:
                    killed += 1
            tried_in_all, killed_in_all = tried_in_all + len(mutants), killed_in_all + killed
            is_enough = is_enough and (options.waits or killed >= ENOUGH * len(mutants))
            share = killed / len(mutants) if mutants else 1.0
            rows.append(f"| {target.name} | {len(paths)} | {len(mutants)} | {killed} | {share:.0%} |")
            print(f"{rows[-1]}  {time.monotonic() - began:.0f} s, seed {options.seed}", flush=True)
    print(f"\nSeed {options.seed}, {options.sample or 'all'} mutants of each target:\n")
    print("| target | modules | mutants | killed | share |\n| --- | ---: | ---: | ---: | ---: |")
    print("\n".join(rows))
    if options.waits:
        print(f"{killed_in_all} of {tried_in_all} removed waits were noticed")
        is_enough = killed_in_all >= ENOUGH * tried_in_all
    return 0 if is_enough else 1


def _import_early() -> None:
    """What takes long to import and isn't mutated."""
    import numpy
    import pluggy
    import pytest
    import torch
    import torch.distributed.checkpoint
    import torch.utils.data

    del numpy, pluggy, pytest
    torch.set_num_threads(1)


def _copied(copy: Path) -> Path:
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "runs")
            )
        else:
            shutil.copy(source, copy / name)
    for folder in ("core", "plugins"):
        compileall.compile_dir(str(copy / folder), quiet=2)
    return copy


def _survives(copy: Path, target: Target, mutant: Mutant, limit_s: float) -> bool:
    path = copy / mutant.path
    original = path.read_text()
    try:
        path.write_text(mutant.source)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # a mutant of the same size and second would be taken for it
        if _tested(copy, target, target.tests_for(mutant.path, copy), limit_s, mutated=True) != 0:
            return False
        after = target.tests_after(mutant.path, copy)
        return not after or _tested(copy, target, after, SIM_S, mutated=True, on_sim=True) == 0
    finally:
        path.write_text(original)


def _tested(
    copy: Path,
    target: Target,
    tests: list[str],
    limit_s: float,
    *,
    mutated: bool = False,
    on_sim: bool = False,
) -> int:
    """Run tests of a target; returns their exit code, which isn't 0 where the time was over."""
    process = os.fork()
    if not process:
        code = 3
        try:
            code = _test(copy, target, tests, mutated, on_sim)
        finally:
            os._exit(code)
    until, ended = time.monotonic() + limit_s, 0
    try:
        while time.monotonic() < until:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return 1
    finally:
        if not ended:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _test(copy: Path, target: Target, tests: list[str], mutated: bool, on_sim: bool) -> int:
    import pytest

    os.setsid()
    os.chdir(copy)
    sys.dont_write_bytecode = mutated
    sources = [copy / "core" / "src", copy, *sorted(copy.glob("plugins/*/src"))]
    sys.path[:0] = map(str, sources)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sources))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    with open(copy / "tests.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import stratagem

    assert Path(stratagem.__file__).is_relative_to(copy), f"{stratagem.__file__} isn't the copy"
    if target.on_sim:
        which = ["-m", "sim", "-k", target.on_sim]
    elif on_sim:
        which = ["-m", "sim"]
    else:
        which = ["-m", "not long", *(() if target.starts_processes else ("-k", f"not ({SLOW})"))]
    return int(pytest.main([*ARGUMENTS, *which, *tests]))


if __name__ == "__main__":
    sys.exit(main())
