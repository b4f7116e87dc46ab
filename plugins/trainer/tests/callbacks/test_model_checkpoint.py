import json
import os
import signal

import pytest
from background_saves import Gated
from stratagem_checkpoint.publication import MANIFEST
from stratagem_trainer.callbacks import ModelCheckpoint
from stratagem_trainer.callbacks import checkpoint_decision as source

from stratagem.errors import CheckpointError, ConfigError

NAN = float("nan")


def names(folder):
    return sorted(os.listdir(folder))


def val(*losses):
    return [{"val_loss": loss} for loss in losses]


def test_without_a_monitor_the_newest_k_are_kept(make_trainer, tmp_path):
    checkpoint = ModelCheckpoint(save_top_k=2, save_last=False)
    make_trainer(checkpoint).fit({}, {}, {})
    assert names(tmp_path / "checkpoints") == ["epoch=1-step=4", "epoch=2-step=6"]
    assert checkpoint.best_model_path == str(tmp_path / "checkpoints" / "epoch=2-step=6")
    assert checkpoint.best_model_score is None
    assert checkpoint.last_model_path == ""


@pytest.mark.parametrize(("mode", "best", "kept"), [("min", 1.0, {1, 3}), ("max", 4.0, {0, 2})])
def test_the_best_k_are_kept_in_either_mode(make_trainer, tmp_path, mode, best, kept):
    checkpoint = ModelCheckpoint(
        monitor="val_loss",
        mode=mode,
        save_top_k=2,
        save_last=False,
        auto_insert_metric_name=False,
        filename="{epoch}",
    )
    make_trainer(checkpoint).fit(*val(3.0, 1.0, 4.0, 2.0))
    assert set(names(tmp_path / "checkpoints")) == {str(epoch) for epoch in kept}
    assert checkpoint.best_model_score == best
    scores = [entry.score for entry in checkpoint.kept]
    assert scores == sorted(scores, reverse=mode == "max")


def test_top_k_of_minus_one_keeps_all_and_zero_none_but_last(make_trainer, tmp_path):
    every = ModelCheckpoint(save_top_k=-1, save_last=False, dirpath="all")
    none = ModelCheckpoint(save_top_k=0, save_last=False, dirpath="none")
    only_last = ModelCheckpoint(save_top_k=0, dirpath="last-only")
    make_trainer(every, none, only_last).fit({}, {}, {})
    assert len(names(tmp_path / "all")) == 3
    assert not (tmp_path / "none").exists()
    assert names(tmp_path / "last-only") == ["epoch=2-step=6", "last"]
    assert only_last.best_model_path == ""


def test_a_worse_one_is_deleted_only_after_the_new_one_is_complete(make_trainer):
    trainer = make_trainer(
        ModelCheckpoint(
            monitor="val_loss", save_last=False, auto_insert_metric_name=False, filename="{epoch}"
        )
    )
    trainer.fit(*val(2.0, 1.0, 3.0))
    assert trainer.events == [("saved", "0"), ("saved", "1"), ("removed", "0")]


def test_a_save_that_fails_deletes_nothing_and_changes_no_ranking(make_trainer, tmp_path, monkeypatch):
    checkpoint = ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(2.0))
    before = checkpoint.state_dict()

    def fail(path):
        raise OSError("no space left")

    monkeypatch.setattr(trainer, "save_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        trainer.fit(*val(1.0), first=1)
    assert checkpoint.state_dict() == before
    assert names(tmp_path / "checkpoints") == ["0", "last"]


def test_last_is_always_the_newest_and_can_be_opened(make_trainer, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(1.0, 2.0, 3.0))
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["0", "2", "last"]
    assert checkpoint.best_model_path == str(folder / "0")
    assert checkpoint.last_model_path == str(folder / "last")
    trainer.restore(checkpoint.last_model_path)
    assert trainer.global_step == 6
    # Each moment is written once.
    assert [event for event in trainer.events if event[0] == "saved"] == [("saved", n) for n in "012"]


def test_where_links_cannot_be_made_last_is_a_checkpoint_of_its_own(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "can_link", lambda path: False)
    checkpoint = ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(1.0, 2.0))
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["0", "last"]
    assert not (folder / "last").is_symlink()
    trainer.restore(checkpoint.last_model_path)
    assert trainer.global_step == 4


def test_a_real_checkpoint_called_last_is_not_swept_aside_for_a_link(make_trainer, tmp_path):
    trainer = make_trainer(ModelCheckpoint(auto_insert_metric_name=False, filename="{epoch}"))
    trainer.save_checkpoint(str(tmp_path / "checkpoints" / "last"))
    trainer.fit({})
    assert not (tmp_path / "checkpoints" / "last").is_symlink()
    trainer.restore(str(tmp_path / "checkpoints" / "last"))
    assert trainer.global_step == 2


def test_nan_and_infinity_are_never_the_best(make_trainer, tmp_path):
    checkpoint = ModelCheckpoint(
        monitor="val_loss", mode="max", save_last=False, auto_insert_metric_name=False, filename="{epoch}"
    )
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(NAN))
    assert checkpoint.best_model_path == ""
    # It had the place while nothing better was there.
    assert names(tmp_path / "checkpoints") == ["0"]
    trainer.fit(*val(float("inf"), 0.5, NAN, float("inf")), first=1)
    assert names(tmp_path / "checkpoints") == ["2"]
    assert checkpoint.best_model_score == 0.5


def test_of_equals_the_earlier_stays(make_trainer, tmp_path):
    trainer = make_trainer(
        ModelCheckpoint(
            monitor="val_loss", save_last=False, auto_insert_metric_name=False, filename="{epoch}"
        )
    )
    trainer.fit(*val(1.0, 1.0))
    assert names(tmp_path / "checkpoints") == ["0"]


def test_every_n_epochs(make_trainer, tmp_path):
    trainer = make_trainer(
        ModelCheckpoint(
            save_top_k=-1,
            save_last=False,
            every_n_epochs=2,
            auto_insert_metric_name=False,
            filename="{epoch}",
        )
    )
    trainer.fit({}, {}, {}, {}, {})
    assert names(tmp_path / "checkpoints") == ["1", "3"]


def test_every_n_steps_alone_ignores_epochs_and_with_epochs_saves_at_both(make_trainer, tmp_path):
    steps = ModelCheckpoint(
        save_top_k=-1,
        save_last=False,
        every_n_train_steps=3,
        dirpath="steps",
        auto_insert_metric_name=False,
        filename="{step}",
    )
    both = ModelCheckpoint(
        save_top_k=-1,
        save_last=False,
        every_n_train_steps=3,
        every_n_epochs=2,
        dirpath="both",
        auto_insert_metric_name=False,
        filename="{step}",
    )
    make_trainer(steps, both).fit({}, {}, {}, {})
    assert names(tmp_path / "steps") == ["3", "6"]
    assert names(tmp_path / "both") == ["3", "4", "6", "8"]


def test_a_step_of_several_micro_batches_is_saved_once(make_trainer):
    checkpoint = ModelCheckpoint(every_n_train_steps=2, auto_insert_metric_name=False, filename="{step}")
    trainer = make_trainer(checkpoint)
    trainer.global_step = 2
    for index in range(3):
        trainer.call("on_train_batch_end", None, None, index)
    assert trainer.events == [("saved", "2")]
    # Neither is it saved again by the run that goes on from it.
    resumed = make_trainer(
        ModelCheckpoint(every_n_train_steps=2, auto_insert_metric_name=False, filename="{step}")
    )
    resumed.restore(checkpoint.last_model_path)
    resumed.call("on_train_batch_end", None, None, 3)
    assert resumed.events == []


def test_a_step_is_ranked_by_the_evaluation_that_follows_it(make_trainer):
    checkpoint = ModelCheckpoint(
        monitor="val_loss",
        every_n_train_steps=2,
        save_top_k=3,
        save_last=False,
        auto_insert_metric_name=False,
        filename="{step}",
    )
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(3.0, 1.0, 2.0))
    assert [(entry.step, entry.score) for entry in checkpoint.kept] == [(4, 1.0), (6, 2.0), (2, 3.0)]


def test_a_fit_that_ends_between_two_checkpoints_leaves_its_last_state(make_trainer, tmp_path):
    ranked = ModelCheckpoint(
        monitor="val_loss", every_n_epochs=2, auto_insert_metric_name=False, filename="{epoch}-{step}"
    )
    trainer = make_trainer(ranked, ModelCheckpoint(every_n_epochs=2, save_last=False, dirpath="quiet"))
    trainer.fit(*val(2.0, 3.0, 1.0))
    # The score of the third epoch isn't that of a checkpoint, so it doesn't take part.
    assert ranked.best_model_score == 3.0
    assert names(tmp_path / "checkpoints") == ["1-4", "2-6", "last"]
    trainer.restore(ranked.last_model_path)
    assert trainer.global_step == 6
    assert names(tmp_path / "quiet") == ["epoch=1-step=4"]


def test_names_hold_metrics_of_any_name(make_trainer, tmp_path):
    name = "e{epoch:02d}-{val/loss:.3f}-{val.acc:.0%}"
    make_trainer(ModelCheckpoint(save_last=False, filename=name, auto_insert_metric_name=False)).fit(
        {"val/loss": 0.12345, "val.acc": 0.5}
    )
    assert names(tmp_path / "checkpoints") == ["e00-0.123-50%"]


def test_one_name_for_all_never_costs_a_checkpoint_that_is_kept(make_trainer, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_loss", filename="best")
    trainer = make_trainer(checkpoint)
    trainer.fit(*val(2.0, 3.0))
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["best", "best-step=4", "last"]
    trainer.fit(*val(1.0), first=2)
    assert names(folder) == ["best", "last"]
    trainer.restore(str(folder / "best"))
    assert trainer.global_step == 6
    several = ModelCheckpoint(save_top_k=3, save_last=False, dirpath="several", filename="same")
    make_trainer(several).fit({}, {}, {})
    assert len(names(tmp_path / "several")) == 3


def test_a_resumed_run_goes_on_with_the_ranking(make_trainer, tmp_path):
    def make():
        return ModelCheckpoint(
            monitor="val_loss", save_top_k=2, auto_insert_metric_name=False, filename="{epoch}"
        )

    make_trainer(make()).fit(*val(1.0, 3.0, 2.0))
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["0", "2", "last"]
    resumed = make()
    trainer = make_trainer(resumed)
    trainer.restore(str(folder / "last"))
    assert resumed.best_model_score == 1.0
    trainer.fit(*val(1.5, 9.0), first=3)
    assert names(folder) == ["0", "3", "4", "last"]
    assert [entry.score for entry in resumed.kept] == [1.0, 1.5]
    assert resumed.best_model_path == str(folder / "0")


def test_a_run_resumed_elsewhere_leaves_the_old_folder_alone(make_trainer, tmp_path):
    def make():
        return ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")

    make_trainer(make(), run_dir=str(tmp_path / "a")).fit(*val(1.0, 2.0))
    resumed = make()
    trainer = make_trainer(resumed, run_dir=str(tmp_path / "b"))
    trainer.restore(str(tmp_path / "a" / "checkpoints" / "last"))
    trainer.fit(*val(1.5), first=2)
    assert names(tmp_path / "a" / "checkpoints") == ["0", "1", "last"]
    assert names(tmp_path / "b" / "checkpoints") == ["2", "last"]
    # Nothing has beaten the old one yet.
    assert resumed.best_model_path == str(tmp_path / "a" / "checkpoints" / "0")
    trainer.fit(*val(0.5), first=3)
    assert resumed.best_model_path == str(tmp_path / "b" / "checkpoints" / "3")


def test_a_foreign_checkpoint_deletes_nothing_outside_of_the_runs_folder(make_trainer, tmp_path):
    def make():
        return ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")

    planted = make()
    trainer = make_trainer(planted)
    trainer.fit(*val(5.0))
    folder = tmp_path / "checkpoints"
    trainer.save_checkpoint(str(tmp_path / "others" / "precious"))
    (tmp_path / "empty").mkdir()
    own = planted.state_dict()
    entry = {"score": 9.0, "step": 1}
    outside = [tmp_path / "others" / "precious", folder / ".." / "empty", folder / "0" / "..", folder]
    own["kept"] = [{"path": str(path), **entry} for path in outside]
    own["outdone"] = [str(path) for path in outside]
    own["newest"] = f"{tmp_path}/others/precious"
    planted.load_state_dict(own)
    trainer.save_checkpoint(str(tmp_path / "foreign"))

    resumed = make()
    victim = make_trainer(resumed)
    victim.restore(str(tmp_path / "foreign"))
    with pytest.warns(
        UserWarning, match="outside of .*checkpoints, which are ignored: .*precious"
    ) as reported:
        victim.fit(*val(1.0, 0.5), first=1)
    assert len(reported) == 1
    assert names(tmp_path / "others") == ["precious"]
    assert (tmp_path / "empty").is_dir()
    assert names(folder) == ["0", "2", "last"]
    assert [entry.path for entry in resumed.kept] == [str(folder / "2")]


def test_its_state_is_plain_json(make_trainer):
    checkpoint = ModelCheckpoint(
        monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}", save_top_k=2
    )
    make_trainer(checkpoint).fit(*val(1.0, NAN))
    again = ModelCheckpoint(
        monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}", save_top_k=2
    )
    again.load_state_dict(json.loads(json.dumps(checkpoint.state_dict())))
    assert str(again.kept) == str(checkpoint.kept)
    assert again.last_model_path == checkpoint.last_model_path


def test_an_unknown_monitor_is_an_error_that_lists_what_was_logged(make_trainer, tmp_path):
    trainer = make_trainer(ModelCheckpoint(monitor="val_lss"))
    with pytest.raises(ConfigError, match=r"'val_lss', which isn't logged; logged are: train_loss, val_loss"):
        trainer.fit({"train_loss": 2.0, "val_loss": 1.0})
    assert not (tmp_path / "checkpoints").exists()
    named = make_trainer(ModelCheckpoint(auto_insert_metric_name=False, filename="{epoch}-{val_lss}"))
    with pytest.raises(ConfigError, match="needs 'val_lss'"):
        named.fit({"val_loss": 1.0})


def test_a_metric_of_a_validation_still_to_come_is_waited_for(make_trainer, tmp_path):
    trainer = make_trainer(
        ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")
    )
    with pytest.warns(UserWarning, match="no evaluation has run yet"):
        trainer.fit({"train_loss": 2.0}, {"val_loss": 1.0})
    assert names(tmp_path / "checkpoints") == ["1", "last"]


def test_a_monitor_that_never_came_is_an_error_at_the_end(make_trainer, tmp_path):
    trainer = make_trainer(
        ModelCheckpoint(monitor="tran_loss", auto_insert_metric_name=False, filename="{epoch}")
    )
    with (
        pytest.warns(UserWarning, match="tran_loss"),
        pytest.raises(ConfigError, match="logged are: train_loss"),
    ):
        trainer.fit({"train_loss": 2.0})
    # What could be saved was.
    assert names(tmp_path / "checkpoints") == ["0", "last"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "smallest"}, '"min" and "max"'),
        ({"save_top_k": -2}, "save_top_k=-2"),
        ({"save_top_k": True}, "save_top_k=True"),
        ({"save_top_k": 1.5}, "save_top_k=1.5"),
        ({"every_n_epochs": -1}, "every_n_epochs=-1"),
        ({"every_n_train_steps": "3"}, "every_n_train_steps='3'"),
        ({"monitor": ""}, "monitor=''"),
        ({"filename": ""}, "filename=''"),
        ({"filename": "last"}, "filename='last'"),
        ({"filename": "a/{epoch}"}, "path separator"),
        ({"filename": "{epoch"}, "brace"),
        ({"filename": "{epoch:.2q}"}, "not a format for epoch"),
        ({"filename": "{val_loss:d}"}, "not a format for val_loss"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ModelCheckpoint(**arguments)


def test_in_the_background_the_link_and_deletions_wait_for_the_new_one(make_trainer, tmp_path):
    checkpoint = ModelCheckpoint(auto_insert_metric_name=False, filename="{epoch}")
    trainer = make_trainer(checkpoint, saves_in_background=True)
    folder = tmp_path / "checkpoints"
    seen = []
    try:
        trainer.fit({})
        trainer.checkpointer.wait()
        checkpoint.on_start(trainer, None, "fit")
        trainer.epoch(1)
        trainer.when_saved(lambda: seen.append((names(folder), os.readlink(folder / "last"))))
        assert os.path.exists(folder / "last")  # whichever it is, it is whole
        trainer.checkpointer.wait()
    finally:
        trainer.checkpointer.close()
    assert seen in ([(["0", "1", "last"], "1")], [(["1", "last"], "1")])
    assert names(folder) == ["1", "last"]


def test_a_background_save_that_fails_deletes_nothing_and_changes_no_ranking(
    make_trainer, tmp_path, monkeypatch
):
    checkpoint = ModelCheckpoint(auto_insert_metric_name=False, filename="{epoch}")
    trainer = make_trainer(checkpoint, saves_in_background=True)
    folder = tmp_path / "checkpoints"
    try:
        trainer.fit({})
        trainer.checkpointer.wait()
        before = checkpoint.state_dict()
        monkeypatch.setattr(trainer.checkpointer, "filesystem", lambda path: (Gated(MANIFEST), path))
        (folder / "shut").touch()
        checkpoint.on_start(trainer, None, "fit")
        trainer.epoch(1)
        assert os.readlink(folder / "last") == "0"
        os.kill(trainer.checkpointer._background.writer.pid, signal.SIGKILL)
        (folder / "shut").unlink()
        with pytest.raises(CheckpointError, match="ended by SIGKILL") as reported:
            trainer.checkpointer.wait()
        checkpoint.on_exception(trainer, None, reported.value)
        assert checkpoint.state_dict() == before
        assert [name for name in names(folder) if ".tmp-" not in name] == ["0", "last"]
        assert os.readlink(folder / "last") == "0"
    finally:
        trainer.checkpointer.close(failed=True)
