"""`python -m stratagem_diff record PROGRAM …`: record a program that isn't changed, also under torchrun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratagem.errors import UsageError

FOLDER = "diff-record"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the program. Returns the exit code."""
    from stratagem_diff.recorder import STEPS, Recorder, RecordOptions
    from stratagem_diff.values import WHOLE

    parser = argparse.ArgumentParser(prog="python -m stratagem_diff", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run a program and record its training", allow_abbrev=False)
    record.add_argument("--out", default=FOLDER, metavar="FOLDER", help=f"of the record (default: {FOLDER})")
    record.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps (default: {STEPS})")
    record.add_argument(
        "--rounding", action="store_true", help="move values by a unit in the last place, to measure rounding"
    )
    record.add_argument("--no-dropout", action="store_true", help="set dropout's probability to 0")
    record.add_argument(
        "--whole",
        type=int,
        default=WHOLE,
        metavar="N",
        help=f"keep tensors of up to N elements (default: {WHOLE})",
    )
    record.add_argument(
        "-m", dest="is_module", action="store_true", help="PROGRAM is a module, as for python -m"
    )
    record.add_argument("program", metavar="PROGRAM")
    record.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="arguments of the program")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps {given.steps}: give at least 1")
    from stratagem_diff.script import run_recorded

    options = RecordOptions(given.steps, given.whole, given.rounding, not given.no_dropout)
    try:
        run_recorded(given.program, given.arguments, Recorder(given.out, options), given.is_module)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
