import os
from datetime import timedelta

import pytest
from stratagem_trainer.callbacks import ModelCheckpoint
from stratagem_trainer.callbacks.retention import Retention

from stratagem.errors import ConfigError


def names(folder):
    return sorted(name for name in os.listdir(folder) if name != "last")


def val(*losses):
    return [{"val_loss": loss} for loss in losses]


def make(**keywords):
    return ModelCheckpoint(auto_insert_metric_name=False, filename="{step}", **keywords)


def test_one_of_every_so_many_steps_stays(make_trainer, tmp_path):
    trainer = make_trainer(make(every_n_train_steps=1, keep_every_n_steps=4), num_train_batches=5)
    trainer.fit({}, {})
    assert names(tmp_path / "checkpoints") == ["10", "4", "8"]


def test_the_first_after_a_multiple_stays_where_none_is_saved_at_it(make_trainer, tmp_path):
    trainer = make_trainer(make(keep_every_n_steps=4), num_train_batches=3)
    trainer.fit({}, {}, {}, {})
    assert names(tmp_path / "checkpoints") == ["12", "6", "9"]


def test_what_stays_is_saved_though_it_is_none_of_the_best(make_trainer, tmp_path):
    trainer = make_trainer(make(monitor="val_loss", save_last=False, keep_every_n_steps=4))
    trainer.fit(*val(1.0, 2.0, 3.0, 4.0))
    assert names(tmp_path / "checkpoints") == ["2", "4", "8"]


def test_one_of_every_so_much_time_stays(make_trainer, tmp_path, monkeypatch):
    now_s = iter(range(0, 10_000, 60))
    monkeypatch.setattr("stratagem_trainer.callbacks.model_checkpoint.time.time", lambda: next(now_s))
    trainer = make_trainer(make(keep_time_interval=timedelta(minutes=2)), num_train_batches=1)
    trainer.fit({}, {}, {}, {}, {}, {})
    assert names(tmp_path / "checkpoints") == ["3", "5", "6"]


def test_a_resumed_run_deletes_none_that_stays_and_counts_on(make_trainer, tmp_path):
    first = make_trainer(make(every_n_train_steps=1, keep_every_n_steps=3), num_train_batches=4)
    first.fit({})
    second = make_trainer(make(every_n_train_steps=1, keep_every_n_steps=3), num_train_batches=4)
    second.restore(str(tmp_path / "checkpoints" / "last"))
    second.fit({}, first=1)
    assert names(tmp_path / "checkpoints") == ["3", "6", "8"]


def test_a_checkpoint_from_before_retention_is_taken_up(make_trainer, tmp_path):
    callback = make()
    make_trainer(callback).fit({})
    state = callback.state_dict()
    for name in ("retained", "retained_step", "retained_at_s"):
        del state[name]
    other = make()
    other.load_state_dict(state)
    assert other.kept == callback.kept


@pytest.mark.parametrize(
    "keywords", [{"keep_every_n_steps": 0}, {"keep_every_n_steps": 2.5}, {"keep_time_interval": 60}]
)
def test_what_can_not_be_meant_is_refused(keywords):
    with pytest.raises(ConfigError, match=f"ModelCheckpoint got {next(iter(keywords))}="):
        make(**keywords)


def test_retention_of_steps_and_time_add_up():
    both = Retention(10, timedelta(seconds=5))
    assert both.retains(10, 0.0, 0, 0.0)
    assert both.retains(9, 5.0, 0, 0.0)
    assert not both.retains(9, 4.0, 0, 0.0)
    assert not Retention().retains(10**6, 1e9, 0, 0.0)
