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
        ("lr", 1.0, True),
        ("lr", 0.5, True),
        ("lr", 0.25, True),
        ("lr", 0.125, True),
    ]
    assert fit(make_trainer, LearningRateMonitor("epoch"), sgd(1.0)) == [
        ("lr", 1.0, False),
        ("lr", 0.25, False),
    ]


def test_groups_and_optimizers_are_told_apart(make_trainer):
    logged = fit(make_trainer, LearningRateMonitor("epoch"), sgd(1.0, 2.0), sgd(3.0))
    assert logged[:3] == [("lr/0/0", 1.0, False), ("lr/0/1", 2.0, False), ("lr/1", 3.0, False)]


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="interval='batch'"):
        LearningRateMonitor("batch")
