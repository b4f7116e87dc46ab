import json

import pytest
from stratagem_trainer.callbacks import EarlyStopping

from stratagem.errors import ConfigError


def val(*losses):
    return [{"val_loss": loss} for loss in losses]


@pytest.fixture
def stop(make_trainer, capsys):
    """Fit one epoch per validation loss; return the trainer and what was said."""

    def fit(stopping, *losses):
        trainer = make_trainer(stopping)
        trainer.fit(*val(*losses))
        return trainer, capsys.readouterr().err

    return fit


def test_it_stops_when_patience_is_over_and_says_why_once(stop):
    stopping = EarlyStopping("val_loss", patience=2)
    trainer, said = stop(stopping, 3.0, 2.0, 2.5, 2.0, 1.0)
    assert trainer.should_stop
    assert stopping.stopped_epoch == 3
    assert stopping.best_score == 2.0
    assert said == "Stopping in epoch 4 at step 8: val_loss hasn't beaten 2, 2 times in a row.\n"


def test_an_improvement_starts_the_patience_again(stop):
    stopping = EarlyStopping("val_loss", patience=2)
    trainer, said = stop(stopping, 3.0, 4.0, 2.0, 4.0, 1.0, 4.0)
    assert not trainer.should_stop
    assert stopping.wait_count == 1
    assert said == ""


def test_max_mode(stop):
    stopping = EarlyStopping("val_loss", mode="max", patience=1)
    trainer, _ = stop(stopping, 0.5, 0.6, 0.55)
    assert stopping.stopped_epoch == 2
    assert stopping.best_score == 0.6
    assert trainer.should_stop


@pytest.mark.parametrize(("mode", "sign"), [("min", 1.0), ("max", -1.0)])
def test_min_delta_asks_for_more_than_itself(stop, mode, sign):
    stopping = EarlyStopping("val_loss", mode=mode, patience=2, min_delta=0.5)
    stop(stopping, sign * 3.0, sign * 2.5, sign * 2.4, sign * 2.3)
    # 2.5 isn't enough, 2.4 is, 2.3 isn't.
    assert stopping.best_score == sign * 2.4
    assert stopping.wait_count == 1


def test_thresholds(stop):
    _, said = stop(EarlyStopping("val_loss", stopping_threshold=0.1), 1.0, 0.09)
    assert "reached 0.09, beyond stopping_threshold 0.1" in said
    _, said = stop(EarlyStopping("val_loss", divergence_threshold=5.0, patience=9), 1.0, 5.0, 6.0)
    assert "epoch 3" in said
    assert "is 6, beyond divergence_threshold 5" in said
    _, said = stop(EarlyStopping("val_loss", mode="max", divergence_threshold=0.1, patience=9), 0.5, 0.05)
    assert "is 0.05, beyond divergence_threshold 0.1" in said


def test_values_that_are_not_finite(stop):
    trainer, said = stop(EarlyStopping("val_loss"), 1.0, float("nan"))
    assert "val_loss is nan." in said
    stopping = EarlyStopping("val_loss", check_finite=False, patience=3)
    trainer, said = stop(stopping, float("nan"), float("-inf"), 1.0)
    assert not trainer.should_stop
    assert stopping.best_score == 1.0


def test_a_metric_of_evaluations_is_looked_at_after_each_of_them(make_trainer, capsys):
    stopping = EarlyStopping("val_loss", patience=2)
    trainer = make_trainer(stopping)
    trainer.call("on_start", "fit")
    for loss in (1.0, 2.0, 2.0):
        trainer.validate({"val_loss": loss})
    # Three validations within one epoch: at the third, two have gone by without improvement.
    assert trainer.should_stop
    # The end of the epoch is no further look, nor are epochs without a validation.
    waited = stopping.wait_count
    trainer.call("on_train_epoch_end")
    assert stopping.wait_count == waited
    assert capsys.readouterr().err.count("Stopping") == 1


def test_a_metric_of_training_is_looked_at_once_per_epoch_whatever_is_validated(make_trainer, capsys):
    stopping = EarlyStopping("train_loss", patience=2)
    trainer = make_trainer(stopping)
    trainer.fit(*({"train_loss": 1.0, "val_loss": 5.0 - epoch} for epoch in range(5)))
    assert stopping.stopped_epoch == 2
    assert "train_loss hasn't beaten 1," in capsys.readouterr().err


def test_validation_on_its_own_is_not_looked_at(make_trainer):
    stopping = EarlyStopping("val_loss", stopping_threshold=1.0)
    trainer = make_trainer(stopping)
    trainer.call("on_start", "validate")
    trainer.validate({"val_loss": 0.5})
    trainer.call("on_end", "validate")
    assert not trainer.should_stop
    assert stopping.best_score is None


def test_a_resumed_run_goes_on_counting_and_a_stopped_one_can_be_taken_further(stop, make_trainer, capsys):
    first = EarlyStopping("val_loss", patience=3)
    stop(first, 1.0, 2.0, 2.0)
    second = EarlyStopping("val_loss", patience=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    trainer = make_trainer(second)
    trainer.fit(*val(2.0), first=3)
    assert second.stopped_epoch == 3
    third = EarlyStopping("val_loss", patience=3)
    third.load_state_dict(second.state_dict())
    trainer = make_trainer(third)
    trainer.fit(*val(0.5), first=4)
    assert not trainer.should_stop
    assert third.reason == ""
    trainer.fit(*val(0.6, 0.6, 0.6, 0.6), first=5)
    assert third.stopped_epoch == 7
    trainer.should_stop = False
    trainer.fit(*val(0.6), first=8)
    assert third.stopped_epoch == 8


def test_a_missing_metric_is_an_error_when_strict(make_trainer):
    with pytest.raises(ConfigError, match=r"EarlyStopping needs 'los', .* logged are: val_loss"):
        make_trainer(EarlyStopping("los")).fit(*val(1.0))
    with pytest.warns(UserWarning, match="needs 'los'"):
        make_trainer(EarlyStopping("los")).fit({"loss": 1.0}, {"loss": 1.0})
    trainer = make_trainer(EarlyStopping("los", strict=False))
    trainer.fit(*val(1.0, 2.0))
    assert not trainer.should_stop


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": None}, "monitor=None"),
        ({"mode": "low"}, "mode='low'"),
        ({"patience": -1}, "patience=-1"),
        ({"patience": 1.5}, "patience=1.5"),
        ({"min_delta": -0.1}, "min_delta=-0.1"),
        ({"min_delta": float("nan")}, "min_delta=nan"),
        ({"stopping_threshold": float("nan")}, "stopping_threshold=nan"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        EarlyStopping(**{"monitor": "val_loss", **arguments})
