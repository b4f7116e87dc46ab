"""A module is filled from a checkpoint of the same module, or not touched."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stratagem.errors import CheckpointError
from stratagem.strategies.model_state import load_model


class Counts(nn.Linear):
    """Keeps something that is no tensor."""

    steps = 0

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


class Reader(SimpleNamespace):
    """An opened checkpoint of `saved`."""

    def __init__(self, saved):
        super().__init__(saved=saved, tensors=dict.fromkeys(saved), read_with_grad=None)

    def read(self, targets):
        self.read_with_grad = torch.is_grad_enabled()
        for name, target in targets.items():
            target.copy_(self.saved[name])


NAMES = ("model/weight", "model/bias")


def saved(*names):
    return Reader({name: torch.full((1,), 7.0) for name in names})


def load(reader, extra=None, names=NAMES):
    module = Counts(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    targets = {"model/weight": module.weight.detach().view(1), "model/bias": module.bias}
    load_model(module, targets, reader, extra or {}, names)
    return module


def test_targets_are_filled_and_nothing_else_of_the_checkpoint_counts():
    reader = saved(*NAMES, "optimizer/0/weight/momentum")
    module = load(reader)
    assert (module.weight.item(), module.bias.item(), module.steps) == (7, 7, 0)
    assert reader.read_with_grad is False


def test_extra_state_is_given_and_the_rest_stays_as_it_was_read():
    module = load(saved(*NAMES), {"_extra_state": {"steps": 5}})
    assert (module.weight.item(), module.bias.item(), module.steps) == (7, 7, 5)


def test_names_that_this_rank_lacks_count_too():
    with pytest.raises(CheckpointError, match="missing keys: other; unexpected keys: none"):
        load(saved(*NAMES), names=(*NAMES, "model/other"))


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (("model/weight",), "missing keys: bias; unexpected keys: none"),
        ((*NAMES, "model/net/more"), "missing keys: none; unexpected keys: net/more"),
        ([f"model/{letter}" for letter in "badc"], "missing keys: bias, weight; unexpected keys: a, b, c, d"),
        (
            (*NAMES, *(f"model/{letter}" for letter in "abcdef")),
            "missing keys: none; unexpected keys: a, b, c, d and 2 more",
        ),
    ],
)
def test_another_modules_checkpoint_is_refused_before_anything_is_read(there, said):
    reader = saved(*there)
    with pytest.raises(CheckpointError) as raised:
        load(reader)
    assert str(raised.value) == f"the checkpoint was made by another module: {said}"
    assert reader.read_with_grad is None


class Copies(nn.Linear):
    """Its own `state_dict` returns copies, as of weights in another dtype."""

    def state_dict(self, *args, **kwargs):
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


def test_a_module_whose_state_dict_returns_copies_is_filled():
    module = Copies(1, 1)
    targets = {f"model/{name}": value for name, value in module.state_dict().items()}
    load_model(
        module, targets, Reader({name: torch.full_like(targets[name], 7.0) for name in NAMES}), {}, NAMES
    )
    assert (module.weight.item(), module.bias.item()) == (7, 7)
