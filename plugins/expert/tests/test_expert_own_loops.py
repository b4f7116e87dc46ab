"""Your own training loop with experts among ranks: gradients are those of one process, whatever the batches are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mixture_models import transformers_model
from stratagem_expert.conformance import SmallMixture
from tensor_models import LENGTH, VOCABULARY
from torch import Tensor, nn
from torch.nn import functional as F

from stratagem import ConfigError, Runtime
from stratagem.errors import ShardedUseError

STEPS = 4


def mixtral() -> nn.Module:
    torch.manual_seed(3)
    net = transformers_model("mixtral")
    net.config.output_router_logits = True  # adds the loss that balances experts, by the tokens of a batch
    return net


def tokens(step: int, part: int) -> Tensor:
    """The first data rank has one sentence, the next two, and so on."""
    generator = torch.Generator().manual_seed(10 * step + part)
    return torch.randint(VOCABULARY, (part + 1, LENGTH), generator=generator)


def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
    return net(input_ids=batch, labels=batch).loss


def train(runtime: Any) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """Return norms, the gradients of the last step, and weights; gradients and weights are whole."""
    net = mixtral()
    user = net
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        runtime.backward(loss_of(net, tokens(step, runtime.collectives.data.rank)))
        gradients = {name: whole(each.grad) for name, each in user.named_parameters()}
        norms.append(float(runtime.clip(optimizer, max_norm=0.1)))
        optimizer.step()
    return norms, gradients, {name: whole(each) for name, each in user.named_parameters()}


def whole(tensor: Any) -> Tensor:
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def plainly(parts: int) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """The mean of the losses of all parts, in plain torch."""
    net = mixtral()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss_of(net, tokens(step, part)) / parts for part in range(parts)).backward()
        gradients = {name: each.grad.clone() for name, each in net.named_parameters()}
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 0.1)))
        optimizer.step()
    return norms, gradients, {name: each.detach() for name, each in net.named_parameters()}


def runtime(axes: str, devices: int) -> Runtime:
    return Runtime(
        strategy=axes, accelerator="cpu", devices=devices, seed=7, strategy_options={"timeout_s": 60}
    )


@pytest.mark.parametrize(("axes", "devices"), [("expert=2", 2), ("shard=2+expert=2", 4)])
def test_gradients_norms_and_weights(axes: str, devices: int) -> None:
    norms, gradients, weights = runtime(axes, devices).launch(train, quiet=True)
    expected_norms, expected_gradients, expected_weights = plainly(devices)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert any("experts.gate_up_proj" in name for name in gradients)
    for ours, theirs in ((gradients, expected_gradients), (weights, expected_weights)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.mixture, self.head = SmallMixture(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mixture(x))


def hands_on(runtime: Any) -> dict[str, Any]:
    """What a user may do to experts, and what it came to."""
    net = Net()
    experts = net.mixture.experts
    before = copy.deepcopy(net)
    prepared, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x = torch.randn(5 + runtime.rank, 6, generator=torch.Generator().manual_seed(runtime.rank))
    seen: dict[str, Any] = {}

    def refused(what: Any) -> str:
        try:
            what()
        except ShardedUseError as error:
            return str(error)
        return "nothing was refused"

    # A copy is whole, and computes without the ranks.
    copied = copy.deepcopy(net)
    seen["copy"] = torch.equal(copied(x), before(x))
    # A penalty on the experts themselves.
    penalty = (experts.up**2).sum()
    runtime.backward(prepared(x).sum() * 0 + penalty)
    seen["penalty"] = torch.allclose(whole(experts.up.grad), 2 * before.mixture.experts.up)
    optimizer.zero_grad()
    # Values of one rank alone can't become gradients of shards.
    seen["assigned"] = refused(
        lambda: setattr(experts.up, "grad", torch.full((4, 6, 12), 1.0 + runtime.rank))
    )
    # Frozen experts get no gradient, and the others do.
    experts.requires_grad_(False)
    runtime.backward(F.cross_entropy(prepared(x), torch.zeros(len(x), dtype=torch.long)))
    seen["frozen"] = [name for name, each in net.named_parameters() if each.grad is None]
    return seen


def test_what_a_loop_does_to_experts() -> None:
    seen = runtime("expert=2", 2).launch(hands_on, quiet=True)
    assert seen["copy"]
    assert seen["penalty"]
    assert "would write other values on each rank" in seen["assigned"]
    assert seen["frozen"] == [
        "mixture.experts.up",
        "mixture.experts.up_bias",
        "mixture.experts.down",
    ]


def choose_wrongly(runtime: Any) -> None:
    net = Net()
    experts = net.mixture.experts
    prepared = runtime.setup(net)
    experts.register_forward_pre_hook(lambda module, args: (args[0], args[1] + 4, args[2]), prepend=True)
    prepared(torch.ones(2, 6))


def test_an_expert_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"the router chose expert \d, and there are 4, numbered from 0"):
        runtime("expert=2", 2).launch(choose_wrongly, quiet=True)
