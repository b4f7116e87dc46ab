"""Copies of a module compute with its parameters and leave its buffers alone."""

import torch
from stratagem_dp.replicas import replicate
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(self.second(self.first(self.norm(x)))[:, None])[0]


def test_gradients_come_back_to_the_one_set_of_parameters():
    module, x = Tied(), torch.randn(6, 4)
    copy = replicate(module, torch.device("cpu")).modules[id(module)]
    module.eval(), copy.eval()
    copy(x).sum().backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, [p.grad for p in module.parameters()])
    assert len(list(copy.parameters())) == len(list(module.parameters()))  # tied ones stay tied


def test_on_another_device_parameters_are_copies_that_autograd_knows():
    module = Tied()
    copies = replicate(module, torch.device("meta")).modules
    copy = copies[id(module)]
    assert {tensor.device.type for tensor in (*copy.parameters(), *copy.buffers())} == {"meta"}
    assert all(parameter.grad_fn is not None for parameter in copy.parameters())
    assert copy.first.weight is copy.second.weight
    assert {weight.device.type for weight in copies[id(module.rnn)]._flat_weights} == {"meta"}
    assert module.first.weight.device.type == "cpu"


def test_buffers_and_attributes_of_a_copy_are_its_own():
    module = Tied()
    copy = replicate(module, torch.device("cpu")).modules[id(module)]
    copy(torch.randn(6, 4))
    copy.seen = True
    assert module.norm.num_batches_tracked == 0
    assert not hasattr(module, "seen")
