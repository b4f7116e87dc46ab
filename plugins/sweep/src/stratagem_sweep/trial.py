"""A run of a sweep, in a process of its own: `python -m stratagem_sweep.trial FOLDER NUMBER PARENT WORDS…`.

FOLDER is the sweep's, NUMBER the trial's, PARENT the id of the process that started this one, and WORDS are for
`stratagem fit`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stratagem.errors import StratagemError

PRUNED = "pruned"
"""Attribute of a trial: whether the pruner ended its fit."""
ERROR = "error"
"""Attribute of a trial: why its run failed, as one sentence."""


def main(args: Sequence[str]) -> int:
    """Run the fit; return its exit code."""
    from stratagem_cli.reporting import run_reporting
    from stratagem_launch import die_with

    folder, number, parent, *words = args
    die_with(int(parent))
    return run_reporting(lambda: _fit(folder, int(number), words))


def _fit(folder: str, number: int, words: list[str]) -> None:
    import optuna
    from stratagem_trainer.commands.stages import fit, run_fit

    from stratagem_sweep.plan import SweepPlan
    from stratagem_sweep.pruning import PruningCallback

    plan = SweepPlan.read(folder)
    trial = plan.trial(folder, number)
    with fit.make_context("stratagem fit", words) as context:
        try:
            run_fit(context.params, [PruningCallback(trial, plan.monitor)])
        except optuna.TrialPruned:
            trial.set_user_attr(PRUNED, True)
        except Exception as error:
            trial.set_user_attr(ERROR, _sentence(error))
            raise


def _sentence(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, StratagemError) else f"{type(error).__name__}: {said}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
