"""`python -m tests.planted [NAME…]`: plant the faults of further.yaml, and print which the kit catches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

VARIABLES = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
PLACE = {**VARIABLES, "MASTER_ADDR": "host", "MASTER_PORT": "29501"}


def subject_of(kind: str, part: Any) -> Any:
    """Return what the checks of a fault are about."""
    from stratagem_testing import EnvironmentSubject, PrecisionSubject, StrategySubject
    from stratagem_testing.report import SUBJECTS

    if kind == "strategy":
        return StrategySubject(part)
    if kind == "precision":
        return PrecisionSubject(part, asked_as=part.asked_as)
    if kind == "environment":
        return EnvironmentSubject(part, examples=((PLACE, {"global_rank": 3}),))
    return SUBJECTS[kind](part)  # type: ignore[index]  # a kind of a component


def main(chosen: list[str]) -> int:
    """Plant each fault, and count."""
    from faults import FAULTS
    from stratagem_testing import run_check
    from stratagem_testing.report import CHECKS

    listed = yaml.safe_load((HERE / "further.yaml").read_text(encoding="utf-8"))
    names = [name for faults in listed.values() for name in faults]
    caught, escaped, without = [], [], []
    for name in chosen or names:
        if name not in FAULTS:
            without.append(name)
            print(f"{name}: nothing of the interface could have it", flush=True)
            continue
        part, checks = FAULTS[name]
        kind = next(
            kind
            for kind, tried in CHECKS.items()
            if checks[0] in {each.name for each in tried} and _is(kind, part)
        )
        by = {check.name: check for check in CHECKS[kind]}
        for check in checks:
            size = 2 if 2 in by[check].world_sizes else 1
            outcome = run_check(by[check], subject_of(kind, part), size)
            if outcome.verdict == "failed":
                caught.append(name)
                print(f"{name}: caught by {check}: {outcome.reason[:100]}", flush=True)
                break
        else:
            escaped.append(name)
            print(f"{name}: ESCAPED {', '.join(checks)}", flush=True)
    print(f"{len(caught)} caught, {len(escaped)} escaped, {len(without)} can't be planted")
    return 0


def _is(kind: str, part: Any) -> bool:
    from stratagem import Accelerator, Checkpointer, Environment, Launcher, Precision, Strategy

    bases = {
        "strategy": Strategy,
        "accelerator": Accelerator,
        "checkpoint": Checkpointer,
        "environment": Environment,
        "launcher": Launcher,
        "precision": Precision,
    }
    return kind in bases and issubclass(part, bases[kind])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
