"""`seed_everything`, `isolate_rng`, and what one rank does for all."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import Line
from stratagem_trainer import (
    isolate_rng,
    rank_zero_debug,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
    seed_everything,
)

import stratagem
from stratagem.errors import ConfigError


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item()]


def test_a_seed_is_that_of_all_generators(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stratagem"):
        assert seed_everything(5, workers=True) == 5
    assert "seed 5" in caplog.text
    first = drawn()
    assert seed_everything(verbose=False) == 5
    assert drawn() == first
    assert stratagem.seed_everything is seed_everything
    for wrong in (-1, 2**32, "3", True):
        with pytest.raises(ConfigError, match="must be a whole number from 0"):
            seed_everything(wrong)


def test_what_is_drawn_within_leaves_no_trace() -> None:
    seed_everything(5, verbose=False)
    first = drawn()
    seed_everything(5, verbose=False)
    with isolate_rng():
        drawn()
    assert drawn() == first


class Draws(Line):
    """Has a number of each rank's own, and one of its construction."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(torch.initial_seed())  # Line has set another one
        self.made = random.random()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        drawn = self.all_gather(torch.rand(()))
        self.log("first", drawn[0], on_step=True)
        self.log("apart", float(drawn[0] != drawn[-1]))
        self.log("made", self.made)
        return super().training_step(batch, batch_idx)


def test_workers_are_seeded_by_the_process_that_starts_them(tmp_path: Path) -> None:
    found = []
    for seed in (5, 5, 6):
        seed_everything(seed, verbose=False)
        trainer = stratagem.Trainer(
            strategy="ddp",
            accelerator="cpu",
            devices=2,
            max_steps=1,
            log_every_n_steps=1,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            run_dir=tmp_path / "run",
        )
        trainer.fit(Draws)
        found.append({name: trainer.callback_metrics[name] for name in ("first", "made", "apart")})
    assert found[0] == found[1]
    assert found[0]["apart"] == 1.0
    assert found[0]["first"] != found[2]["first"]
    assert found[0]["made"] != found[2]["made"]


def test_only_rank_0_acts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    @rank_zero_only
    def act(value: int) -> int:
        """Doubles."""
        return 2 * value

    assert (act.__doc__, act(2), rank_zero_only.rank) == ("Doubles.", 4, 0)
    with caplog.at_level(logging.DEBUG, "stratagem"):
        rank_zero_info("a %d", 1)
        rank_zero_debug("b")
    assert "a 1" in caplog.text
    assert "b" in caplog.text
    with pytest.warns(UserWarning, match="careful") as reported:
        rank_zero_warn("careful")
    assert reported[0].filename == __file__
    monkeypatch.setenv("RANK", "1")
    assert (rank_zero_only.rank, act(2)) == (1, None)
    rank_zero_warn("not said")
    rank_zero_only.rank = 0
    assert act(2) == 4
    rank_zero_only.rank = None
    assert rank_zero_only(lambda: 1, default=7)() == 7
