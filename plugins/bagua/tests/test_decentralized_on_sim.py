"""Peers' parameters are read once they are there, on a device whose work runs late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_bagua import BaguaStrategy
from stratagem_sim.build import is_built
from torch import nn

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
CASES: dict[str, dict[str, Any]] = {
    "shift_one": {"algorithm": "decentralized", "peer_selection_mode": "shift_one"},
    "low_precision": {"algorithm": "low_precision_decentralized"},
}


def train(runtime: Any) -> list[list[float]]:
    """Return the parameters of all ranks after five steps. Collective."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
    model, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    inputs = torch.randn(5, 4, 12, generator=torch.Generator().manual_seed(runtime.rank))
    for x in inputs.to(runtime.device):
        runtime.backward(model(x).square().mean(), model)
        optimizer.step()
        optimizer.zero_grad()
    own = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()]).tolist()
    ranks: list[list[float]] = runtime.collectives.gather_objects(own)
    return ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_replicas_are_those_of_the_cpu(case: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SIM_DELAY", "late")
    # No rank waits for its own sends: they run this late.
    monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "100")
    monkeypatch.setenv("STRATAGEM_SIM_DEVICES", "4")

    def trained(accelerator: str) -> torch.Tensor:
        strategy = BaguaStrategy(timeout_s=60, **CASES[case])
        return torch.tensor(stratagem.Runtime(strategy, accelerator, ranks).launch(train, quiet=True))

    found = trained("sim")
    # What hasn't arrived yet is NaN. This comes first: on the CPU, messages that nothing waits for hang.
    assert found.isfinite().all()
    expected = trained("cpu")
    assert not torch.equal(expected[0], expected[1]), "replicas are equal, so that nothing was tried"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
