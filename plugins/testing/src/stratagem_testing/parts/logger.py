"""Checks for every logger."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import LoggerSubject

if TYPE_CHECKING:
    from stratagem_trainer.loggers.base import Logger

_CONFIG = {"module": {"width": 8, "name": "Net", "rates": [0.1, 0.2], "none": None}, "trainer": {"seed": 7}}


def _rows(first: int, last: int) -> list[Any]:
    from stratagem_trainer.loggers.base import Row

    return [
        Row(step, step // 4, {"loss": 1 / step, "grad/norm": float(step)}) for step in range(first, last + 1)
    ]


def _made(subject: LoggerSubject) -> Logger:
    logger: Logger = subject.load()(**subject.options)
    return logger


@check(world_sizes=(1,))
def check_made(subject: LoggerSubject) -> None:
    """It is a Logger that is made from its options only, accepts rows, and can be pickled for workers."""
    from stratagem_trainer.loggers.base import Logger

    logger = _made(subject)
    expect(isinstance(logger, Logger), f"it is a {type(logger).__name__}, not a Logger")
    cls = type(logger)
    takes = cls.write is not Logger.write or cls.log_metrics is not Logger.log_metrics
    expect(takes, "it overrides neither write nor log_metrics")
    expect(type(pickle.loads(pickle.dumps(logger))) is cls, "it isn't the same after pickling")


@check(world_sizes=(1,))
def check_takes_rows(subject: LoggerSubject) -> None:
    """Rows, hyperparameters, NaN and infinity are accepted from open to close, in several stages of one run."""
    subject.alone(_take_rows)


def _take_rows(subject: LoggerSubject) -> None:
    from stratagem_trainer.loggers.base import Row

    logger = _made(subject)
    for stage in range(2):
        logger.open(subject.folder, _CONFIG, 0 if stage == 0 else None)
        logger.log_hyperparams({"width": 8, "nested": {"activation": "Tanh"}})
        logger.write(_rows(1 + 8 * stage, 8 + 8 * stage))
        logger.write([Row(16 * (1 + stage), 3, {"loss": math.nan, "scale": math.inf, "other": -math.inf})])
        logger.write([])
        logger.log_metrics({"by_hand": 1.0}, 16 * (1 + stage))
        logger.flush()
        logger.close()


@check(world_sizes=(1,))
def check_reads_back(subject: LoggerSubject) -> None:
    """Each row is read back once, and a resumed run has dropped the rows after its step."""
    if subject.read is None:
        raise NotApplicable("its subject has no function `read`")
    wanted, found = subject.alone(_write_and_resume)
    for (step, values), (its_step, its_values) in zip(wanted, found):
        same = step == its_step and all(
            name in its_values and math.isclose(its_values[name], value, rel_tol=1e-5)
            for name, value in values.items()
        )
        expect(same, f"step {step} has {values}, but is read back as step {its_step} with {its_values}")
    expect(len(found) == len(wanted), f"{len(wanted)} rows were written, but {len(found)} are read back")


def _write_and_resume(subject: LoggerSubject) -> tuple[list[Any], list[Any]]:
    first = _made(subject)
    first.open(subject.folder, _CONFIG, 0)
    first.write(_rows(1, 6))
    first.flush()  # as if the process was then killed: nothing closes the logger
    state = first.state_dict()
    second = _made(subject)
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    second.open(subject.folder, _CONFIG, 4)
    second.write(_rows(5, 8))
    second.close()
    assert subject.read is not None
    wanted = [(row.step, dict(row.values)) for row in _rows(1, 8)]
    return wanted, [(step, dict(values)) for step, values in subject.read(subject.folder)]


@check(world_sizes=(1,))
def check_drops_when_muted(subject: LoggerSubject) -> None:
    """On ranks other than 0, it drops all values, and its experiment accepts any call."""
    changed = subject.alone(_log_muted)
    expect(not changed, f"a muted logger has written {changed}")


def _log_muted(subject: LoggerSubject) -> list[str]:
    logger = _made(subject).mute()
    logger.log_metrics({"loss": 1.0}, 1)
    logger.experiment.add_anything("name", 1.0)
    logger.experiment["key"] = 1.0
    logger.save()
    return [str(path) for path in Path(subject.folder).rglob("*") if path.is_file()]


@check(world_sizes=(1,), in_worker=True)
def check_changes_nothing(subject: LoggerSubject) -> None:
    """A training that it logs is bitwise equal to one without it."""
    from stratagem_testing.recipe import Recipe
    from stratagem_testing.same import expect_identical
    from stratagem_testing.subject import StrategySubject
    from stratagem_testing.trained import train

    single = StrategySubject("single", folder=subject.folder)
    alone = train(single, Recipe(steps=8))
    logged = train(single, Recipe(steps=8), logger=_made(subject), log_every_n_steps=1)
    expect_identical(logged, alone, "the run that is logged", "the run without")
