"""`ModelCheckpoint`'s and `EarlyStopping`'s further options, `Timer`, `LambdaCallback` and progress bars."""

import os
import time
from datetime import timedelta

import pytest
import yaml
from stratagem_trainer.callbacks import (
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    RichProgressBar,
    Timer,
    TQDMProgressBar,
)
from stratagem_trainer.settings import TrainerSettings

from stratagem.errors import ConfigError


def val(*losses):
    return [{"val_loss": loss} for loss in losses]


def test_names_are_inserted_and_a_slash_in_one_makes_no_folder(make_trainer, tmp_path):
    kept = ModelCheckpoint(monitor="val/loss", filename="{epoch}-{val/loss:.2f}", save_last=False)
    make_trainer(kept).fit({"val/loss": 0.5})
    assert os.listdir(tmp_path / "checkpoints") == ["epoch=0-val_loss=0.50"]


def test_a_name_that_another_run_has_taken_gets_a_version(make_trainer, tmp_path):
    for _ in range(3):
        kept = ModelCheckpoint(dirpath=str(tmp_path / "all"), filename="best", save_last=False)
        make_trainer(kept).fit({})
    assert sorted(os.listdir(tmp_path / "all")) == ["best", "best-v1", "best-v2"]
    replaced = ModelCheckpoint(
        dirpath=str(tmp_path / "all"), filename="best", save_last=False, enable_version_counter=False
    )
    make_trainer(replaced).fit({})
    assert sorted(os.listdir(tmp_path / "all")) == ["best", "best-v1", "best-v2"]


def test_the_turn_of_an_epoch_is_after_its_validation_where_that_is_said_or_usual(make_trainer):
    after = ModelCheckpoint(monitor="val_loss", save_on_train_epoch_end=False)
    trainer = make_trainer(after)
    seen = []
    saves = trainer.save_checkpoint
    trainer.save_checkpoint = lambda path: (seen.append(trainer.batch_idx), saves(path))
    trainer.call("on_start", "fit")
    trainer.validate({"val_loss": 1.0})
    assert len(seen) == 1
    trainer.call("on_train_epoch_end")
    assert len(seen) == 1
    seldom = ModelCheckpoint(save_last=False)
    trainer = make_trainer(seldom, settings=TrainerSettings(check_val_every_n_epoch=2))
    trainer.fit({}, {"val_loss": 1.0}, {})
    assert [name for what, name in trainer.events if what == "saved"] == ["epoch=1-step=4"]


def test_saves_by_the_clock_of_rank_0(make_trainer, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("stratagem_trainer.callbacks.model_checkpoint.time.monotonic", lambda: now[0])
    kept = ModelCheckpoint(train_time_interval=timedelta(seconds=10), save_top_k=-1, save_last=False)
    trainer = make_trainer(kept, num_train_batches=6)
    step = LambdaCallback(on_train_batch_start=lambda *_: now.__setitem__(0, now[0] + 4))
    trainer.callbacks.insert(0, step)
    trainer.callbacks[1:] = [kept]
    for callback in (step,):
        callback.state_dict = dict
    trainer.fit({})
    assert [entry.step for entry in kept.kept] == [6, 3]


def test_the_best_is_reported_and_written(make_trainer, tmp_path, capsys):
    kept = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last="link", verbose=True)
    make_trainer(kept).fit(*val(3.0, 1.0, 2.0))
    assert list(kept.best_k_models.values()) == [1.0, 2.0]
    assert kept.current_score == 2.0
    kept.to_yaml()
    written = yaml.safe_load((tmp_path / "checkpoints" / "best_k_models.yaml").read_text())
    assert written == kept.best_k_models
    assert "Epoch 2, step 4: saved" in capsys.readouterr().out
    assert (tmp_path / "checkpoints" / "last").is_symlink()


def test_zero_turns_saving_off(make_trainer, tmp_path):
    make_trainer(ModelCheckpoint(every_n_train_steps=0, save_last=False)).fit({}, {})
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_last": "copy"}, "save_last='copy'"),
        ({"train_time_interval": 60}, "pass a timedelta above 0"),
        ({"every_n_train_steps": -1}, "every_n_train_steps=-1"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ModelCheckpoint(**arguments)


def test_early_stopping_checks_after_the_chosen_epochs(make_trainer, capsys):
    epochs = EarlyStopping("val_loss", patience=1, check_on_train_epoch_end=True, verbose=True)
    trainer = make_trainer(epochs)
    trainer.fit(*val(1.0, 2.0, 3.0))
    assert epochs.stopped_epoch == 1
    assert "val_loss improved to 1" in capsys.readouterr().err
    validations = EarlyStopping("train_loss", patience=1, check_on_train_epoch_end=False)
    trainer = make_trainer(validations)
    trainer.fit({"train_loss": 1.0}, {"train_loss": 2.0})  # which have no validation
    assert validations.best_score is None


def test_a_timer_ends_a_fit_and_counts_earlier_runs(make_trainer, capsys):
    timer = Timer(timedelta(hours=1))
    trainer = make_trainer(timer)
    began = time.perf_counter()
    trainer.fit({})
    assert not trainer.should_stop
    assert 0 < timer.time_elapsed() <= time.perf_counter() - began
    assert timer.time_remaining() == pytest.approx(3600 - timer.time_elapsed())
    resumed = Timer({"hours": 1})
    resumed.load_state_dict({"time_elapsed_s": {"fit": 3600.0, "validate": 1.0}})
    trainer = make_trainer(resumed)
    trainer.fit({}, {})
    assert trainer.should_stop
    assert trainer.current_epoch == 0
    assert "1:00:00 are over" in capsys.readouterr().err
    assert resumed.time_elapsed("validate") == 1.0
    for wrong in ({"interval": "batch"}, {"duration": "1h"}):
        with pytest.raises(ConfigError):
            Timer(**wrong)
    with pytest.raises(ConfigError, match="no stage 'fitting'"):
        timer.time_elapsed("fitting")


def test_functions_are_called_and_unknown_hooks_refused():
    with pytest.raises(ConfigError, match=r"on_fit_begin, which is not a hook; nearest: .*on_fit"):
        LambdaCallback(on_fit_begin=print)


@pytest.mark.parametrize("kind", [RichProgressBar, TQDMProgressBar])
def test_bars_of_other_names_are_ours_and_show_what_get_metrics_returns(make_trainer, kind, capsys):
    class Own(kind):
        def get_metrics(self, trainer, module):
            return {**super().get_metrics(trainer, module), "own": "text"}

    make_trainer(Own()).fit({"train_loss": 0.5})
    assert "train_loss 0.5  own text" in capsys.readouterr().out
    make_trainer(kind(refresh_rate=0)).fit({"train_loss": 0.5})
    assert capsys.readouterr().out == ""
