"""Ring attention reads what the rank before sent once it is there, on a device whose work runs late."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_sequences import Case, compute, of_class, plainly
from stratagem_sim.build import is_built
from stratagem_testing import StrategySubject

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_and_gradients_are_those_of_one_process(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_SIM_DELAY", "late")
    monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "300")
    monkeypatch.setenv("STRATAGEM_SIM_DEVICES", "4")
    cases = [Case("grouped", "packed"), Case("recomputed", "padding")]
    options = {"timeout_s": 60, "context_parallel_size": ranks, "attention": "ring", "parallelize": of_class}
    subject = StrategySubject(
        "context_parallel", accelerator="sim", options=options, own_processes=True, folder=str(tmp_path)
    )
    for computed in subject.at(ranks).run(compute, cases):
        for case, found in zip(cases, computed):
            plain = plainly(case)
            assert (found.output - plain.output).abs().max() <= 1e-12, case
            assert found.gradients.keys() == plain.gradients.keys()
            for name, gradient in found.gradients.items():
                assert (gradient - plain.gradients[name]).abs().max() <= 1e-12, (case, name)
