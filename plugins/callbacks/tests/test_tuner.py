"""The learning rate and the batch size that short fits find, in one process and on two ranks."""

import pytest
import torch
from callback_nets import Net, trainer
from stratagem_callbacks import BatchSizeFinder, LearningRateFinder, Tuner
from torch.utils.data import DataLoader

from stratagem.errors import ConfigError


class Limited(Net):
    """Runs out of memory, on one rank, at more than 12 samples."""

    def training_step(self, batch, batch_idx):
        if len(batch[0]) > 12 and self.global_rank == 0:
            raise MemoryError("out of memory")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_a_rate_is_found_and_nothing_else_changes(tmp_path, strategy, devices):
    module = Net(8 // devices, lr=1e-5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    draws = torch.get_rng_state()
    found = Tuner(trainer(strategy, tmp_path, devices=devices)).lr_find(module, num_training=40, max_lr=10.0)
    assert 1e-3 < found.suggestion() < 10.0
    assert module.lr == found.suggestion()
    rates, losses = found.results["lr"], found.results["loss"]
    assert rates[0] == 1e-8
    assert rates == sorted(rates)
    assert len(losses) == len(rates) <= 40
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("strategy", "devices"), [pytest.param("single", 1, marks=pytest.mark.long), ("ddp", 2)]
)
def test_the_largest_batch_that_fits_is_found_though_one_rank_alone_fails(tmp_path, strategy, devices):
    module = Limited(batch_size=1)
    tuner = Tuner(trainer(strategy, tmp_path, devices=devices))
    modes = {"power": 8, "binsearch": 12} if devices == 1 else {"power": 8}
    for mode, largest in modes.items():
        assert tuner.scale_batch_size(module, mode=mode, init_val=4, steps_per_trial=1) == largest
        assert module.batch_size == largest


def test_finders_run_before_a_fit_which_uses_what_they_found(tmp_path):
    module = Limited(batch_size=1, lr=1e-9)
    rate, size = LearningRateFinder(num_training_steps=30), BatchSizeFinder(init_val=4, steps_per_trial=1)
    run = trainer("single", tmp_path, size, rate, max_epochs=1)
    run.fit(module)
    assert run.global_step == 32 // 8
    assert module.lr == rate.optimal_lr.suggestion() > 1e-9
    assert size.optimal_batch_size == 8


def test_what_cannot_be_found_is_refused(tmp_path):
    tuner = Tuner(trainer("single", tmp_path))
    module = Net()
    with pytest.raises(ConfigError, match="no attribute 'rate' to set"):
        tuner.lr_find(module, attr_name="rate")
    with pytest.raises(ConfigError, match="give 0 < min_lr < max_lr"):
        tuner.lr_find(module, min_lr=1.0, max_lr=0.1)
    with pytest.raises(ConfigError, match="batch size is fixed"):
        tuner.scale_batch_size(module, DataLoader([1]))
    with pytest.raises(ConfigError, match="not even batch_size=16 fits"):
        tuner.scale_batch_size(Limited(), init_val=16)
