"""A parameter that pauses before a checkpoint pauses after it, and its moments and step count stand still."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fidelity_cases import batch_of, make_net
from stratagem_deepspeed.conformance import SMALL
from stratagem_testing import StrategySubject
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import Optimizer

from stratagem import CombinationError

pytestmark = pytest.mark.timeout(600)

PAUSES_AT, SAVED_AT, ENDS_AT = 2, 4, 6
NEVER = "spare.weight"


def make() -> nn.Module:
    net: Any = make_net()
    net.spare = nn.Linear(2, 2, bias=False)
    return net


def adam(net: nn.Module) -> Optimizer:
    return torch.optim.NAdam(net.parameters(), lr=0.01)


def step(
    net: Any, module: Any, optimizer: Any, index: int, backward: Any, rank: int, world_size: int
) -> None:
    net[2].requires_grad_(index < PAUSES_AT or index >= ENDS_AT)
    x, y = (torch.cat(each) for each in zip(batch_of(index, 0), batch_of(index, 1)))
    logits = module(x.chunk(world_size)[rank])
    optimizer.zero_grad()
    backward(F.cross_entropy(logits, y.chunk(world_size)[rank]))
    optimizer.step()


class Calls(nn.Module):
    """Leaves out the layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make()

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self.net)[:5]:
            x = layer(x)
        return x


def plainly(steps: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and Adam's states by checkpoint key, after so many steps in plain torch."""
    module: Any = Calls()
    optimizer = adam(module)
    for index in range(steps):
        step(module.net, module, optimizer, index, Tensor.backward, 0, 1)
    states = {
        f"optimizer/0/{name}/{key}": value.clone()
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return dict(module.state_dict()), states


def save(subject: StrategySubject, path: str) -> dict[str, Tensor]:
    return subject.runtime().launch(_save, path, quiet=True)


def _save(runtime: Any, path: str) -> dict[str, Tensor]:
    net, module, optimizer = _set_up(runtime)
    for index in range(SAVED_AT):
        _step(runtime, net, module, optimizer, index)
    runtime.save(path)
    if hasattr(runtime._prepared[0], "save_engine"):
        runtime._prepared[0].save_engine(f"{path}-engine")
    return {key: _whole(value) for key, value in runtime._prepared[0].optimizer_tensors().items()}


def go_on(
    subject: StrategySubject, paths: list[str]
) -> list[tuple[dict[str, Tensor], dict[str, Tensor], str]]:
    """Load each; return weights and states at the end of the pause, and what is said when it is over."""
    return [subject.runtime().launch(_go_on, path, quiet=True) for path in paths]


def _go_on(runtime: Any, path: str) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    net, module, optimizer = _set_up(runtime)
    if path.endswith("-engine"):
        runtime._prepared[0].load_engine(path)
    else:
        runtime.load(path)
    for index in range(SAVED_AT, ENDS_AT):
        _step(runtime, net, module, optimizer, index)
    prepared = runtime._prepared[0]
    weights = {key.removeprefix("model/"): _whole(value) for key, value in prepared.model_tensors().items()}
    states = {key: _whole(value) for key, value in prepared.optimizer_tensors().items()}
    try:
        _step(runtime, net, module, optimizer, ENDS_AT)
    except CombinationError as error:
        return weights, states, str(error)
    return weights, states, "nothing"


def _set_up(runtime: Any) -> tuple[Any, Any, Any]:
    plain = Calls()
    module, optimizer = runtime.setup(plain, adam)
    return plain.net, module, optimizer


def _step(runtime: Any, net: Any, module: Any, optimizer: Any, index: int) -> None:
    step(
        net,
        module,
        optimizer,
        index,
        lambda loss: runtime.backward(loss, module),
        runtime.rank,
        runtime.world_size,
    )


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()


def expect(came: dict[str, Tensor], expected: dict[str, Tensor], who: str) -> None:
    assert came.keys() == expected.keys(), who
    for key, value in expected.items():
        torch.testing.assert_close(
            came[key], value, atol=1e-5, rtol=1e-5, msg=lambda m, k=key: f"{who}, {k}: {m}"
        )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_pause_goes_on_after_a_checkpoint(stage: int, tmp_path: Path) -> None:
    _, states = plainly(SAVED_AT)
    assert float(states["optimizer/0/net.2.weight/step"]) == PAUSES_AT
    assert not any(NEVER in key for key in states)
    weights, later = plainly(ENDS_AT)
    single = StrategySubject("single")
    own = replace(StrategySubject("deepspeed", options={**SMALL, "stage": stage}), world_size=2)
    here, elsewhere = str(tmp_path / "deepspeed"), str(tmp_path / "single")
    for subject, path in ((own, here), (single, elsewhere)):
        for saved in subject.run(save, path, timeout_s=300):
            expect(saved, states, f"saved by {subject.strategy}")
    readers = [(own, [here, elsewhere, f"{here}-engine"]), (single, [here])]
    for subject, paths in readers:
        for came in subject.run(go_on, paths, timeout_s=300):
            for path, (after, states_after, said) in zip(paths, came):
                expect(after, weights, f"{subject.strategy} from {path}")
                expect(states_after, later, f"{subject.strategy} from {path}")
                if subject is own:
                    assert "'net.2.weight' had no gradient in some of the steps before this one" in said
                else:
                    assert said == "nothing"
