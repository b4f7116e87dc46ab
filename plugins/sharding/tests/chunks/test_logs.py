"""What parts of a batch log becomes one value for the batch."""

import pickle

import pytest
import torch
from stratagem_sharding.chunks import ChunkLogs
from torch import nn

from stratagem.errors import LoggingError


class Logs(nn.Module):
    def __init__(self):
        super().__init__()
        self.logged = []

    def log(self, name, value, **how):
        self.logged.append((name, float(value), how))


def after_parts(name, values, **how):
    module, logs = Logs(), ChunkLogs()
    for value, size in values:
        with logs.of_part(module, size):
            module.log(name, value, **how)
    assert module.logged == []
    logs.replay(module)
    return module.logged


@pytest.mark.parametrize(("fold", "expected"), [("mean", 2.5), ("sum", 5.0), ("min", 1.0), ("max", 4.0)])
def test_each_name_is_logged_once_as_its_reduction_says(fold, expected):
    ((name, value, how),) = after_parts("loss", [(torch.tensor(1.0), 1), (4.0, 1)], reduce_fx=fold)
    assert (name, value, how) == ("loss", expected, {"reduce_fx": fold, "batch_size": 2})


def test_means_are_weighted_by_samples_unless_a_batch_size_is_given():
    ((_, value, how),) = after_parts("loss", [(1.0, 3), (5.0, 1)])
    assert (value, how["batch_size"]) == (2.0, 4)
    ((_, value, how),) = after_parts("loss", [(1.0, 3), (5.0, 1)], batch_size=2)
    assert (value, how["batch_size"]) == (3.0, 4)


def test_what_log_would_refuse_reaches_it():
    module, logs = Logs(), ChunkLogs()
    with logs.of_part(module, 2):
        module.log("loss", torch.zeros(2))
    with pytest.raises((RuntimeError, ValueError, TypeError), match=r"scalar|converted"):
        logs.replay(module)


def test_metric_objects_are_refused():
    # Of several copies and processes, each would have the state of a part.
    module, logs = Logs(), ChunkLogs()
    with (
        logs.of_part(module, 2),
        pytest.raises(LoggingError, match=r"'acc' is logged with a Linear.*log a number"),
    ):
        module.log("acc", nn.Linear(1, 1))


def test_entries_travel_to_other_ranks():
    module, logs = Logs(), ChunkLogs()
    with logs.of_part(module, 2):
        module.log("loss", nn.Parameter(torch.ones(())), prog_bar=True)
    (entry,) = pickle.loads(pickle.dumps(logs.of_batch()))
    assert (entry.name, float(entry.value), entry.how) == ("loss", 1.0, {"prog_bar": True, "batch_size": 2})
    assert not entry.value.requires_grad
