"""Checkpoints go between XLA devices and other strategies by way of files; the run goes on as if nothing had been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.trained import plainly
from stratagem_xla.conformance import FSDP, SINGLE, XLA
from xla_tasks import Adam, go_on, save

SUBJECTS = {
    "single": StrategySubject("single").at(1),
    "ddp2": StrategySubject("ddp", options={"timeout_s": 60}).at(2),
    "single_xla": SINGLE.at(1),
    "xla2": XLA.at(2),
    "xla4": XLA.at(4),
    "xla_fsdp2": FSDP.at(2),
    "xla_fsdp4": FSDP.at(4),
}
SAVED = 6
TOLERANCE = 1e-5

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    paths: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in paths:
            folder = tmp_path_factory.mktemp(name)
            paths[name] = str(folder / "checkpoint")
            replace(SUBJECTS[name], folder=str(folder)).run(save, Adam(), SAVED, paths[name])
        return paths[name]

    return of


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("xla2", "ddp2"),
        ("ddp2", "xla2"),
        ("ddp2", "xla4"),
        ("ddp2", "xla_fsdp2"),
        ("xla_fsdp2", "ddp2"),
        ("xla_fsdp4", "single"),
        ("single", "xla_fsdp4"),
        ("single_xla", "xla2"),
        ("xla4", "single_xla"),
        ("xla2", "xla_fsdp2"),
    ],
)
def test_goes_on(saved, tmp_path: Path, before: str, after: str) -> None:
    subject = replace(SUBJECTS[after], folder=str(tmp_path))
    ranks = subject.run(go_on, Adam(), saved(before))
    whole = plainly(Adam(), subject.shares())
    left = len(whole.losses) - SAVED
    assert left == 5
    for step in range(left):
        loss = sum(trained.losses[step] for trained in ranks) / len(ranks)
        assert loss == pytest.approx(whole.losses[SAVED + step], abs=TOLERANCE)
    for name, value in ranks[0].weights.items():
        assert float((value - whole.weights[name]).abs().max()) < 10 * TOLERANCE, name
