"""`PruningCallback` with studies of Optuna, in one process and in worker processes."""

from __future__ import annotations

import pickle

import optuna
import pytest
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from searched import Level
from stratagem_sweep import PruningCallback
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError

RANKS = [("single", 1), ("ddp", 2)]
under = pytest.mark.parametrize(("strategy", "devices"), RANKS)


def trainer(folder, callback, strategy="single", devices=1, **how):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "max_epochs": 3}
    quiet["enable_model_summary"] = False
    run = {"strategy": strategy, "accelerator": "cpu", "devices": devices, "run_dir": folder / "run"}
    return stratagem.Trainer(callbacks=[callback], **{**quiet, **run, **how})


def study_in(folder, **how):
    storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
    return optuna.create_study(storage=storage, pruner=optuna.pruners.ThresholdPruner(upper=0.5), **how)


@under
def test_the_pruner_ends_a_fit_on_all_ranks_and_the_caller_hears_of_it(tmp_path, strategy, devices):
    study, epochs, weights = study_in(tmp_path), [], []

    def objective(trial):
        level = trial.suggest_float("level", 0.0, 1.0)
        callback = PruningCallback(trial)
        run, module = trainer(tmp_path, callback, strategy, devices), Level(level)
        before = module.layer.weight.detach().clone()
        try:
            run.fit(module)
        finally:
            epochs.append((run.current_epoch, callback.num_reports, callback.pruned))
            weights.append(not torch.equal(before, module.layer.weight))
        return float(run.callback_metrics["val_loss"])

    study.enqueue_trial({"level": 0.25})
    study.enqueue_trial({"level": 0.75})
    study.optimize(objective, n_trials=2)
    kept, pruned = study.trials
    assert (kept.state, kept.value) == (TrialState.COMPLETE, 0.25)
    assert kept.intermediate_values == {0: 0.25, 1: 0.25, 2: 0.25}
    assert pruned.state == TrialState.PRUNED
    assert pruned.intermediate_values == {0: 0.75}  # the mean over ranks
    assert epochs == [(3, 3, False), (1, 1, True)]
    assert weights == [True, True]  # what was trained until then is here, too


def test_a_metric_of_the_training_is_reported_after_each_epoch(tmp_path):
    study = study_in(tmp_path)
    trial = study.ask()
    trainer(tmp_path, PruningCallback(trial, "loss"), limit_val_batches=0).fit(Level(0.0))
    assert list(study.trials[0].intermediate_values) == [0, 1, 2]


def test_a_fit_that_goes_on_does_not_repeat_reports(tmp_path):
    study = study_in(tmp_path)
    first = trainer(tmp_path, PruningCallback(study.ask()), enable_checkpointing=True, max_epochs=2)
    first.fit(Level(0.25))
    trial = study.ask()
    trainer(tmp_path, PruningCallback(trial), max_epochs=3).fit(
        Level(0.5), ckpt_path=str(tmp_path / "run" / "checkpoints" / "last")
    )
    assert study.trials[0].intermediate_values == {0: 0.25, 1: 0.25}
    assert study.trials[1].intermediate_values == {2: 0.5}


@under
def test_a_study_in_memory_is_for_one_process(tmp_path, strategy, devices):
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    trial = study.ask()
    run = trainer(tmp_path, PruningCallback(trial), strategy, devices)
    if devices == 1:
        with pytest.raises(optuna.TrialPruned, match="pruned after report 0 of val_loss"):
            run.fit(Level(0.75))
        assert study.trials[0].intermediate_values == {0: 0.75}
    else:
        with pytest.raises(
            stratagem.UsageError, match="trial of a study in memory, which worker processes can't"
        ):
            run.fit(Level(0.75))


def test_other_ranks_do_not_open_the_storage(tmp_path):
    callback = PruningCallback(study_in(tmp_path).ask())
    (tmp_path / "study.log").unlink()
    copy = pickle.loads(pickle.dumps(callback))
    assert not (tmp_path / "study.log").exists()
    assert copy.monitor == "val_loss"


def test_bad_arguments(tmp_path):
    with pytest.raises(ConfigError, match=r"got trial='trial 3'; give the optuna\.trial\.Trial"):
        PruningCallback("trial 3")
    callback = PruningCallback(study_in(tmp_path).ask(), "val_los")
    with pytest.raises(
        ConfigError, match="PruningCallback needs 'val_los', which isn't logged; logged are: "
    ):
        trainer(tmp_path, callback).fit(Level(0.25))


def test_an_evaluation_reports_nothing(tmp_path):
    study = study_in(tmp_path)
    run = trainer(tmp_path, PruningCallback(study.ask()))
    run.validate(Level(0.75), DataLoader(torch.ones(2, 2)))
    assert study.trials[0].intermediate_values == {}
