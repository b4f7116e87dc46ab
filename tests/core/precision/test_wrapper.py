"""Everything that a precision is asked is handed on to the wrapped one."""

import torch
from torch import nn

from stratagem.precision.base import Precision
from stratagem.precision.full import FullPrecision
from stratagem.precision.mixed import MixedPrecision
from stratagem.precision.wrapper import PrecisionWrapper

CPU = torch.device("cpu")


class Scales(Precision):
    name, scales_loss = "scaled", True
    param_dtype = torch.float64

    def __init__(self):
        self.calls = []

    def scale(self, loss):
        return loss * 8

    def unscale(self, optimizer):
        self.calls.append(("unscale", optimizer))

    def step(self, optimizer, closure=None):
        self.calls.append(("step", optimizer, closure))
        return False

    def state_dict(self):
        return {"scale": 8}

    def load_state_dict(self, state):
        self.calls.append(("load", state))


def test_it_says_of_itself_what_the_wrapped_one_says():
    wrapper = PrecisionWrapper(Scales())
    assert (wrapper.name, wrapper.scales_loss, wrapper.steps_directly) == ("scaled", True, False)
    assert (wrapper.param_dtype, wrapper.compute_dtype, wrapper.reduce_dtype) == (torch.float64, None, None)
    assert wrapper.converts_input
    mixed = PrecisionWrapper(PrecisionWrapper(MixedPrecision("bf16-mixed", CPU)))
    assert (mixed.compute_dtype, mixed.converts_input, mixed.steps_directly) == (torch.bfloat16, False, True)


def test_it_does_what_the_wrapped_one_does():
    inner = Scales()
    wrapper, optimizer = PrecisionWrapper(inner), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    assert wrapper.scale(torch.ones(())) == 8
    wrapper.unscale(optimizer)
    assert wrapper.step(optimizer) is False
    assert wrapper.step(optimizer, closure=len) is False
    wrapper.load_state_dict({"scale": 4})
    assert wrapper.state_dict() == {"scale": 8}
    assert inner.calls == [
        ("unscale", optimizer),
        ("step", optimizer, None),
        ("step", optimizer, len),
        ("load", {"scale": 4}),
    ]
    assert wrapper.convert_input(torch.ones(1)).dtype is torch.float64
    assert wrapper.convert_module(nn.Linear(1, 1)).weight.dtype is torch.float64
    double = PrecisionWrapper(FullPrecision("64-true", CPU))
    with double.init_context():
        assert torch.ones(1).dtype is torch.float64
    with double.autocast():
        assert torch.ones(1).dtype is torch.float64


def test_a_subclass_that_steps_itself_is_asked_to():
    class Counts(PrecisionWrapper):
        steps = 0

        def step(self, optimizer, closure=None):
            self.steps += 1
            return super().step(optimizer, closure)

    counts = Counts(FullPrecision("32-true", CPU))
    assert counts.step(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)) is True
    assert (counts.steps, counts.steps_directly) == (1, False)
