import pytest
import torch
from stratagem_checkpoint.directory import DirectoryCheckpointer
from torch import nn

from stratagem.checkpoint.base import Checkpoint
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import CheckpointError
from stratagem.strategies.optimizer_state import describe_optimizer, load_optimizer, optimizer_tensors

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD without state": lambda p: torch.optim.SGD(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), amsgrad=True),
    "Adam with a tensor for lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(list(p), lr=0.1, max_iter=3, history_size=2),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def train(net, optimizer, steps):
    x = torch.linspace(-1, 1, 20).reshape(5, 4)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def saved(net, optimizers, path):
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
    state = {"optimizers": [describe_optimizer(net, optimizer) for optimizer in optimizers]}
    checkpointer.save(str(path), Checkpoint(tensors=optimizer_tensors(net, optimizers), state=state))
    reader = checkpointer.open(str(path))
    return reader, reader.state["optimizers"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name, tmp_path):
    net = network()
    optimizer = OPTIMIZERS[name](net.parameters())
    train(net, optimizer, 3)
    reader, description = saved(net, [optimizer], tmp_path / "ckpt")

    other = network()
    other.load_state_dict(net.state_dict())
    resumed = OPTIMIZERS[name](other.parameters())
    load_optimizer(other, resumed, 0, reader, description)
    train(net, optimizer, 3)
    train(other, resumed, 3)
    for expected, got in zip(net.parameters(), other.parameters()):
        assert torch.equal(got, expected)


def test_group_settings_come_back_with_their_types(tmp_path):
    net = network()
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))
    optimizer.param_groups[1]["lr"] = 0.25
    reader, description = saved(net, [optimizer], tmp_path / "ckpt")

    again = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
    resumed = torch.optim.AdamW(again, lr=1.0)
    load_optimizer(net, resumed, 0, reader, description)
    assert [group["lr"] for group in resumed.param_groups] == [0.5, 0.25]
    assert resumed.param_groups[0]["betas"] == (0.8, 0.95)


def test_the_order_of_parameters_within_a_group_does_not_matter(tmp_path):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer, 2)
    reader, description = saved(net, [optimizer], tmp_path / "ckpt")

    other = network()
    other.load_state_dict(net.state_dict())
    resumed = torch.optim.Adam(reversed(list(other.parameters())), lr=0.01)
    load_optimizer(other, resumed, 0, reader, description)
    train(net, optimizer, 2)
    train(other, resumed, 2)
    assert torch.equal(other[0].weight, net[0].weight)


def test_several_optimizers_are_distinguished(tmp_path):
    net = network()
    optimizers = [torch.optim.Adam(net[0].parameters()), torch.optim.SGD(net[2].parameters(), momentum=0.9)]
    for optimizer in optimizers:
        train(net, optimizer, 1)
    keys = set(optimizer_tensors(net, optimizers))
    assert "optimizer/0/0.weight/exp_avg" in keys
    assert "optimizer/1/2.bias/momentum_buffer" in keys
    assert not any(key.startswith("optimizer/0/2.") for key in keys)

    reader, description = saved(net, optimizers, tmp_path / "ckpt")
    resumed = torch.optim.SGD(net[2].parameters(), lr=1.0, momentum=0.9)
    load_optimizer(net, resumed, 1, reader, description)
    expected = optimizers[1].state[net[2].weight]["momentum_buffer"]
    assert torch.equal(resumed.state[net[2].weight]["momentum_buffer"], expected)


def test_a_parameter_without_gradient_has_no_state_and_needs_none(tmp_path):
    net = network()
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer, 1)
    reader, description = saved(net, [optimizer], tmp_path / "ckpt")
    resumed = torch.optim.Adam(net.parameters())
    load_optimizer(net, resumed, 0, reader, description)
    assert net[0].bias not in resumed.state
    train(net, resumed, 1)


def test_too_few_optimizers_in_the_checkpoint_are_refused(tmp_path):
    net = network()
    reader, description = saved(net, [torch.optim.SGD(net.parameters())], tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match="has 1 optimizers and this run needs at least 2"):
        load_optimizer(net, torch.optim.SGD(net.parameters()), 1, reader, description)


def test_other_groups_are_refused(tmp_path):
    net = network()
    reader, description = saved(net, [torch.optim.SGD(net.parameters())], tmp_path / "ckpt")
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
    with pytest.raises(CheckpointError, match=r"groups of \[4\] parameters, this run's of \[2, 2\]"):
        load_optimizer(net, torch.optim.SGD(groups), 0, reader, description)


def test_groups_of_the_same_sizes_with_other_names_are_refused(tmp_path):
    net = network()
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
    reader, description = saved(net, [torch.optim.SGD(groups, lr=0.1)], tmp_path / "ckpt")
    swapped = [{"params": net[2].parameters()}, {"params": net[0].parameters()}]
    with pytest.raises(CheckpointError, match=r"this run's of \[2, 2\], or with other names"):
        load_optimizer(net, torch.optim.SGD(swapped, lr=0.1), 0, reader, description)


def test_parameters_without_a_name_are_refused():
    net, stray = network(), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*net.parameters(), stray], lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError, match="1 parameters of SGD aren't parameters of the module"):
        describe_optimizer(net, optimizer)
    stray.grad = torch.ones(2)
    train(net, optimizer, 1)
    optimizer.state[stray]["momentum_buffer"] = torch.ones(2)
    with pytest.raises(CheckpointError, match="1 parameters of SGD aren't parameters of the module"):
        optimizer_tensors(net, [optimizer])


def test_a_tied_parameter_is_stored_once(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer, 1)
    names = {key.split("/")[2] for key in optimizer_tensors(net, [optimizer])}
    assert names == {"0.weight", "0.bias", "1.bias"}
