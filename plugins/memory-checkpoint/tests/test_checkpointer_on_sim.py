"""Checkpoints go to neighbours' memory from a device whose work runs late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peer_tasks import save_and_lose
from stratagem_sim.build import is_built
from stratagem_testing import StrategySubject

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


@pytest.mark.parametrize(("ranks", "lost"), [(2, (1,)), (4, (0, 2))])
def test_a_checkpoint_is_whole_after_nodes_are_lost(
    ranks: int, lost: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_SIM_DELAY", "late")
    # A send runs as late as this, for its rank waits for nothing.
    monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "100")
    monkeypatch.setenv("STRATAGEM_SIM_DEVICES", "4")
    subject = StrategySubject("ddp", accelerator="sim", options={"timeout_s": 60}, own_processes=True)
    for answer, read in subject.at(ranks).run(save_and_lose, str(tmp_path), lost):
        assert answer == "step=2, step=3"
        assert all(torch.equal(value, torch.arange(10.0) * 3) for value in read.values())
