"""A checkpoint of another number of ranks, and a strategy that doesn't declare that it loads one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_single import SingleDeviceStrategy
from stratagem_trainer.saving.auto_resume import AutoResume

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
    said = (
        "two was written by 2 ranks, and strategy 'SameRanksOnly' only loads it on as many, not on 1: start 2"
    )
    with pytest.raises(CheckpointError, match=said):
        stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_load, two, quiet=True)
    stratagem.Runtime(SameRanksOnly(), accelerator="cpu").launch(_load, one, quiet=True)
    stratagem.Runtime("single", accelerator="cpu").launch(_load, two, quiet=True)


def _pair(runtime: stratagem.Runtime) -> tuple[torch.nn.Module, torch.nn.Module, torch.optim.Optimizer]:
    """Set up two modules whose names and shapes are the same; the second has an optimizer with a state."""
    actor, critic = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    made = torch.optim.Adam(critic.parameters(), lr=0.1)
    return (runtime.setup(actor), *runtime.setup(critic, made))


def _save_pair(runtime: stratagem.Runtime, path: str) -> list[float]:
    actor, critic, optimizer = _pair(runtime)
    runtime.backward(critic(torch.ones(1, 2)).sum(), critic)
    optimizer.step()
    optimizer.zero_grad()
    runtime.save(path, {"actor": actor, "critic": critic, "step": 1})
    return _outputs(runtime, actor, critic, optimizer)


def _outputs(runtime: stratagem.Runtime, actor: Any, critic: Any, optimizer: Any) -> list[float]:
    """What both make of a sample, and what the critic makes after a step that its moments decide."""
    x = torch.ones(1, 2)
    before = [float(actor(x).detach()), float(critic(x).detach())]
    runtime.backward((critic(x) * 1e-3).sum(), critic)
    optimizer.step()
    return [*before, float(critic(x).detach())]


def _load_pair(runtime: stratagem.Runtime, path: str, keys: tuple[str, ...]) -> list[float]:
    actor, critic, optimizer = _pair(runtime)
    state: dict[str, Any] = {**dict(zip(keys, (actor, critic))), "step": 0}
    runtime.load(path, state)
    assert state["step"] == 1
    return _outputs(runtime, actor, critic, optimizer)


def test_several_modules_are_in_one_checkpoint_by_their_keys(tmp_path) -> None:
    path, plain = str(tmp_path / "both"), str(tmp_path / "one")
    two = stratagem.Runtime("ddp", accelerator="cpu", devices=2)
    saved = two.launch(_save_pair, path, quiet=True)
    assert saved[0] != saved[1] != saved[2]
    for strategy, devices in (("ddp", 2), ("single", 1), ("fsdp", 2)):
        runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=devices)
        read = runtime.launch(_load_pair, path, ("actor", "critic"), quiet=True)
        assert read == pytest.approx(saved, abs=1e-6), strategy
    single = stratagem.Runtime("single", accelerator="cpu")
    said = r"both has \['actor', 'critic'\], and this run has set up \['0', 'critics'\]: set up the same"
    with pytest.raises(CheckpointError, match=said):
        single.launch(_load_pair, path, ("", "critics"), quiet=True)
    with pytest.raises(
        CheckpointError, match=r"missing keys: bias, weight; unexpected keys: actor\.bias, actor\.weight"
    ):
        single.launch(_load, path, quiet=True)
    single.launch(_save, plain, quiet=True)
    with pytest.raises(CheckpointError, match="one has one module, and this run has set up"):
        single.launch(_load_pair, plain, ("actor", "critic"), quiet=True)
