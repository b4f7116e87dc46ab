from types import SimpleNamespace

import pytest
import torch
from stratagem_trainer.callbacks import LearningRateMonitor

from stratagem.errors import ConfigError


def fit(make_trainer, monitor, *optimizers):
    """Two epochs of two steps with a rate that halves per step; return what was logged."""
    trainer = make_trainer(monitor)
    trainer.prepared.optimizers = optimizers
    logged = []
    module = SimpleNamespace(log=lambda name, value, **how: logged.append((name, value, how["on_step"])))
    for _ in range(2):
        monitor.on_train_epoch_start(trainer, module)
        for index in range(2):
            monitor.on_train_batch_start(trainer, module, None, index)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] /= 2
    monitor.on_end(trainer, module, "fit")
    return logged


def sgd(*rates):
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates])


def test_each_step_or_each_epoch(make_trainer):
    assert fit(make_trainer, LearningRateMonitor(), sgd(1.0)) == [
        ("lr-SGD", 1.0, True),
        ("lr-SGD", 0.5, True),
        ("lr-SGD", 0.25, True),
        ("lr-SGD", 0.125, True),
    ]
    assert fit(make_trainer, LearningRateMonitor("epoch"), sgd(1.0)) == [
        ("lr-SGD", 1.0, False),
        ("lr-SGD", 0.25, False),
    ]


def test_groups_and_optimizers_are_distinguished(make_trainer):
    logged = fit(make_trainer, LearningRateMonitor("epoch"), sgd(1.0, 2.0), sgd(3.0))
    assert logged[:3] == [
        ("lr-SGD/pg1", 1.0, False),
        ("lr-SGD/pg2", 2.0, False),
        ("lr-SGD-1", 3.0, False),
    ]


def test_momentum_and_weight_decay_are_logged_where_asked_for(make_trainer):
    adam = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0, betas=(0.8, 0.9), weight_decay=0.5)
    monitor = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    assert fit(make_trainer, monitor, adam)[:3] == [
        ("lr-AdamW", 1.0, False),
        ("lr-AdamW-momentum", 0.8, False),
        ("lr-AdamW-weight_decay", 0.5, False),
    ]


def test_without_an_interval_the_schedulers_own_counts_and_its_name_and_the_groups_are_used(make_trainer):
    optimizer = sgd(1.0)
    optimizer.param_groups[0]["name"] = "head"
    monitor = LearningRateMonitor()
    trainer = make_trainer(monitor)
    trainer.prepared.optimizers = (optimizer,)
    trainer.state.schedules.append(SimpleNamespace(optimizer=0, interval="epoch", name="slow"))
    logged = []
    module = SimpleNamespace(log=lambda name, value, **how: logged.append((name, value, how["on_step"])))
    monitor.on_train_epoch_start(trainer, module)
    monitor.on_train_batch_start(trainer, module, None, 0)
    monitor.on_train_batch_start(trainer, module, None, 1)
    assert logged == [("slow/head", 1.0, False)]


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="interval='batch'"):
        LearningRateMonitor("batch")
