"""A checkpoint of another number of ranks, and a strategy that doesn't declare that it loads one."""

from __future__ import annotations

import pytest
import torch
from stratagem_single import SingleDeviceStrategy
from stratagem_trainer.auto_resume import AutoResume

import stratagem
from stratagem import Capabilities
from stratagem.errors import CheckpointError


class SameRanksOnly(SingleDeviceStrategy):
    capabilities = Capabilities(processes="one", features=frozenset())


def _save(runtime: stratagem.Runtime, path: str) -> None:
    runtime.setup(torch.nn.Linear(1, 1))
    runtime.save(path)


def _load(runtime: stratagem.Runtime, path: str) -> None:
    runtime.setup(torch.nn.Linear(1, 1))
    runtime.load(path)


def _go_on(runtime: stratagem.Runtime, path: str) -> bool:
    earlier = AutoResume(runtime)
    earlier.saving(path, 4)
    return earlier.newest() is not None


def test_workers_that_are_started_again_do_not_begin_anew_without_a_word(tmp_path) -> None:
    two, missing = str(tmp_path / "two"), str(tmp_path / "missing")
    stratagem.Runtime("ddp", accelerator="cpu", devices=2).launch(_save, two, quiet=True)
    with pytest.raises(CheckpointError, match="written by 2 ranks"):
        stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_go_on, two, quiet=True)
    assert stratagem.Runtime("single", accelerator="cpu").launch(_go_on, two, quiet=True)
    assert not stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_go_on, missing, quiet=True)


def test_a_strategy_without_resharding_refuses_what_other_ranks_wrote(tmp_path) -> None:
    two, one = str(tmp_path / "two"), str(tmp_path / "one")
    stratagem.Runtime("ddp", accelerator="cpu", devices=2).launch(_save, two, quiet=True)
    stratagem.Runtime("single", accelerator="cpu").launch(_save, one, quiet=True)
    said = "two was written by 2 ranks, and strategy 'SameRanksOnly' loads it on as many alone, not on 1: start 2"
    with pytest.raises(CheckpointError, match=said):
        stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_load, two, quiet=True)
    stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_load, one, quiet=True)
    stratagem.Runtime("single", accelerator="cpu").launch(_load, two, quiet=True)
