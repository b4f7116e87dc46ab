"""Draw own loops, and hold them under a strategy against the same text in one process.

    make differ SECONDS=600 SEED=1                 from this seed on, strategy after strategy
    python -m tests.differ.run --seed 7 --programs 1 --strategies fsdp     repeats one
    python -m tests.differ.run --json docs/gen/differ.json                 adds to the figures of docs/parity.md

A program fails where it trains other numbers without a word. Its text is printed, less the freedoms that it fails
without. Errors that aren't Stratagem's, hangs, and refusals that only the comparison of replicas gave are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.differ.grammar import Program, draw
from tests.support.hands_on import Loop, Outcome, column_of, run_program

STRATEGIES = ("ddp", "ddp_sharded", "fsdp", "ddp_fully_sharded", "model_parallel")
TOLERANCES = {"32-true": 2e-3, "bf16-mixed": 0.2}
"""Relative to how far training moved a tensor. Half-batches round otherwise than whole ones: in bf16, by 2**-8 of
each product."""


@dataclass(frozen=True)
class SourceRow:
    """A loop that travels as text."""

    source: str

    def __call__(self, run: Loop) -> None:
        names: dict[str, Callable[[Loop], None]] = {}
        exec(compile(self.source, "<program>", "exec"), names)
        names["loop"](run)


def tried(program: Program) -> Outcome:
    """Run a program in one process and under its strategy."""
    return run_program(
        SourceRow(program.source),
        f"seed {program.seed}",
        column_of(program.strategy, program.devices),
        program.precision,
        tolerance=TOLERANCES[program.precision],
        parts=program.parts,
    )


def minimised(program: Program, verdict: str) -> Program:
    """Return the program without what it comes to the same verdict without."""
    for name in program.freedoms:
        smaller = program.without(name)
        if tried(smaller).verdict == verdict:
            program = smaller
    for plainer in (replace(program, precision="32-true"), replace(program, model="mlp", optimizer="sgd")):
        if plainer != program and tried(plainer).verdict == verdict:
            program = plainer
    return program


def keep(path: Path, strategy: str, verdict: str) -> None:
    """Count one more program in a file, which is made if there is none."""
    counts = json.loads(path.read_text()) if path.exists() else {}
    own = counts.setdefault(strategy, {})
    own[verdict] = own.get(verdict, 0) + 1
    path.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs until the time is over; returns 1 where one differs without a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=10**9)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 3])
    parser.add_argument(
        "--freedoms", action="store_true", help="also show programs that end in errors of torch"
    )
    parser.add_argument("--json", type=Path, help="where to add up what came of programs, by strategy")
    options = parser.parse_args(arguments)
    until, counted, done = time.monotonic() + options.seconds, Counter[str](), 0
    raw: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.programs):
        if time.monotonic() > until:
            break
        strategy = options.strategies[seed % len(options.strategies)]
        devices = options.devices[seed // len(options.strategies) % len(options.devices)]
        program = draw(seed, strategy, devices)
        try:
            outcome = tried(program)
        except Exception as error:  # the plain loop itself fails: not a program that anyone would have
            counted["invalid"] += 1
            if options.freedoms:
                print(f"- seed {seed} {program.freedoms} in one process: {error!r}", flush=True)
            continue
        done += 1
        counted[outcome.verdict] += 1
        if options.json is not None:
            keep(options.json, strategy, outcome.verdict)
        if outcome.verdict in ("raw", "hung", "guarded"):
            raw[f"{strategy} {outcome.verdict}: {outcome.sentence[:110]}"] += 1
            if options.freedoms:
                print(f"- seed {seed} ×{devices} {program.freedoms}: {outcome}", flush=True)
        if outcome.verdict == "wrong":
            small = minimised(program, "wrong")
            print(
                f"seed {seed} under {strategy} ×{devices}, {small.precision}: {outcome.sentence}\n"
                f"# freedoms: {', '.join(small.freedoms) or 'none'}; the batches are run.batches of "
                f"tests/support/hands_on.py\n{small.source}",
                flush=True,
            )
    for sentence, times in raw.most_common(20):
        print(f"{times} × {sentence}")
    print(
        f"{done} programs from seed {options.seed}:", ", ".join(f"{n} {v}" for v, n in counted.most_common())
    )
    return int(counted["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
