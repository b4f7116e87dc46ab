"""`SweepPlan`: what a sweep is asked for, kept in its folder, and the study of Optuna that belongs to it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError
from stratagem_sweep.search import Searched

if TYPE_CHECKING:
    import optuna
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import JournalStorage

RECORD, STUDY = "sweep.json", "study.log"
NAME = "sweep"
FORMAT = 1
SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("none", "median", "asha", "hyperband")
Mode = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep is asked for; JSON in its folder."""

    words: tuple[str, ...]
    """What `stratagem fit` gets in every run."""
    search: tuple[str, ...]
    """Values of `--search`."""
    monitor: str
    mode: Mode
    runs: int
    sampler: str
    pruner: str
    seed: int
    """Of the sampler."""
    cwd: str
    """Where the runs start, absolute: their words may have paths from there."""

    @property
    def searched(self) -> list[Searched]:
        """The settings to vary.

        Raises:
            ConfigError: one can't be read, or is there twice.
        """
        found = [Searched.parse(text) for text in self.search]
        keys = [each.key for each in found]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"--search has {key} twice: give each setting once")
        return found

    def write(self, folder: str) -> None:
        """Write the record, whole or not at all."""
        path = os.path.join(folder, RECORD)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **asdict(self)}, file, indent=2, ensure_ascii=False)
            file.write("\n")
        os.replace(f"{path}.new", path)

    @classmethod
    def read(cls, folder: str) -> SweepPlan:
        """Read the record of a folder.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        path = os.path.join(folder, RECORD)
        try:
            with open(path, encoding="utf-8") as file:
                content: dict[str, Any] = json.load(file)
            if content.pop("format") != FORMAT:
                raise ConfigError(f"{path} is of another version of stratagem-sweep: upgrade it")
            plan = cls(**content)
            return replace(plan, words=tuple(plan.words), search=tuple(plan.search))
        except FileNotFoundError:
            raise ConfigError(f"{folder!r} is no folder of a sweep: there is no {path}") from None
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigError(f"{path} can't be read as the record of a sweep: {error}") from error

    def study(self, folder: str) -> optuna.Study:
        """Open the study, or make it. Several processes may have it open."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=_storage(folder),
            study_name=NAME,
            direction="minimize" if self.mode == "min" else "maximize",
            pruner=self._pruner(),
            load_if_exists=True,
        )
        # A sweep that goes on draws other numbers than those of the runs before.
        study.sampler = self._sampler(self.seed + len(study.trials))
        return study

    def trial(self, folder: str, number: int) -> optuna.trial.Trial:
        """Open a trial, in the process that runs it."""
        import optuna

        study, storage = self.study(folder), _storage(folder)
        of_study = storage.get_study_id_from_name(NAME)
        return optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(of_study, number))

    def grid(self) -> list[dict[str, str | int | float]]:
        """All combinations of values, by key.

        Raises:
            ConfigError: a range has no end of them.
        """
        searched = self.searched
        values = product(*(each.grid() for each in searched))
        return [{each.key: value for each, value in zip(searched, of_run)} for of_run in values]

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna import samplers

        # What a grid has is put into the study before the first run.
        return samplers.TPESampler(seed=seed) if self.sampler == "tpe" else samplers.RandomSampler(seed=seed)

    def _pruner(self) -> BasePruner:
        from optuna import pruners

        if self.pruner == "median":
            return pruners.MedianPruner()
        if self.pruner == "asha":
            return pruners.SuccessiveHalvingPruner()
        if self.pruner == "hyperband":
            return pruners.HyperbandPruner()
        return pruners.NopPruner()


def _storage(folder: str) -> JournalStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(os.path.join(folder, STUDY)))
