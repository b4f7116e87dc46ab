"""Steps without a trainer can't be run again: they are refused before they train."""

from __future__ import annotations

import pytest
import torch
from kept_net import Net
from stratagem_capsule import CapsuleError
from torch import nn

from stratagem import Runtime


@pytest.mark.parametrize("make_module", [lambda: nn.Linear(6, 3), Net])
def test_your_own_training_loop_is_refused(make_module: type[nn.Module]) -> None:
    trained = []

    def loop(runtime: Runtime) -> None:
        module = make_module()
        runtime.setup(module, torch.optim.SGD(module.parameters(), 0.1))
        trained.append(module)

    runtime = Runtime("single", accelerator="cpu", plugins=["capsule"])
    with pytest.raises(CapsuleError, match="your own training loop with Runtime: leave `capsule` out"):
        runtime.launch(loop, quiet=True)
    assert not trained


def test_an_evaluation_has_no_steps_to_keep() -> None:
    def loop(runtime: Runtime) -> list[int]:
        return list(runtime.setup(nn.Linear(6, 3))(torch.ones(2, 6)).shape)

    assert Runtime("single", accelerator="cpu", plugins=["capsule"]).launch(loop, quiet=True) == [2, 3]
