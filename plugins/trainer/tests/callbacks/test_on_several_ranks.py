"""Callbacks under one process, ddp and fsdp: predictions, and checkpoints after an error."""

from __future__ import annotations

import callback_nets as nets
import pytest
import torch
from callback_nets import Net, Writer, assert_equal, trainer, values
from stratagem_trainer.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint

RANKS = [("single", 1), ("ddp", 2), ("fsdp", 2)]
under = pytest.mark.parametrize(("strategy", "devices"), RANKS)


@under
def test_predictions_are_written_once_with_where_they_belong(tmp_path, strategy, devices):
    module = Net(batch_size=5)
    run = trainer(strategy, tmp_path / "run", Writer(str(tmp_path)), devices=devices)
    returned = torch.cat([part.reshape(-1, 1) for part in run.predict(module)])
    rows = {}
    for rank in range(devices):
        written = torch.load(tmp_path / f"{rank}.pt")
        for indices, predicted in zip(written["indices"], written["predictions"]):
            assert len(indices) == len(predicted)
            assert not rows.keys() & set(indices)
            rows.update(zip(indices, predicted))
    assert sorted(rows) == list(range(nets.SAMPLES))
    torch.testing.assert_close(torch.stack([rows[index] for index in range(nets.SAMPLES)]), returned)


class Judge(Callback):
    """Counts the validations of its rank, and raises in the launching process once a stage has ended."""

    def __init__(self):
        self.validations, self.heard = 0, []

    def on_validation_end(self, trainer, module):
        self.validations += 1

    def state_dict(self):
        return {"validations": self.validations}

    def load_state_dict(self, state):
        self.validations = state["validations"]

    def after_launch(self, trainer, module, stage):
        self.heard.append((stage, self.validations, values(module)))
        if stage == "fit":
            raise ValueError("not good enough")


@pytest.mark.parametrize(("strategy", "devices"), RANKS[:2])
def test_what_after_launch_raises_reaches_the_caller_with_all_that_was_trained(tmp_path, strategy, devices):
    module, judge = Net(8 // devices), Judge()
    before = values(module)
    run = trainer(strategy, tmp_path, judge, devices=devices)
    with pytest.raises(ValueError, match=r"^not good enough$"):
        run.fit(module)
    stage, validations, trained = judge.heard[0]
    assert (stage, validations > 0) == ("fit", True)
    assert_equal(trained, values(module))
    assert any(not torch.equal(trained[name], before[name]) for name in before)
    run.validate(module)
    assert [each[:2] for each in judge.heard[1:]] == [("validate", validations + 1)]


@pytest.mark.parametrize(("strategy", "devices"), RANKS[:2])
def test_an_error_of_all_ranks_leaves_a_checkpoint_from_which_a_fit_goes_on(tmp_path, strategy, devices):
    module = Net(8 // devices)
    module.fails_at = 6
    callbacks = [OnExceptionCheckpoint("kept"), ModelCheckpoint(save_on_exception=True, filename="{step}")]
    with pytest.raises(Exception, match="pulled the plug"):
        trainer(strategy, tmp_path, *callbacks, devices=devices).fit(module)
    assert (tmp_path / "checkpoints" / "step=6-exception").is_dir()
    resumed, whole = Net(8 // devices), Net(8 // devices)
    path = str(tmp_path / "kept" / "on_exception")
    trainer(strategy, tmp_path / "b", devices=devices).fit(resumed, ckpt_path=path)
    trainer(strategy, tmp_path / "c", devices=devices).fit(whole)
    assert_equal(values(resumed), values(whole))
