"""`main`: the program `stratagem`.

Nothing heavy is imported here: workers import the launching program, too.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: words after the program's name; those of this process by default.

    Returns:
        The exit code: 0, 1 for an error of the run, 2 for a request that can't be met, or what the
        failed worker asks for; docs/reference/cli.md has them all.
    """
    from stratagem_cli.commands import commands
    from stratagem_cli.reporting import run_reporting

    return run_reporting(
        lambda: commands.main(
            args=None if args is None else list(args), prog_name="stratagem", standalone_mode=False
        )
    )
