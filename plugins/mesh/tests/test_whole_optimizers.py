"""Optimizers that need whole matrices step those that are sharded over one dimension of a mesh, or over two."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_subjects import composition
from stratagem_sharding.traffic import watch_traffic
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Trained
from stratagem_testing.same import expect_same
from stratagem_testing.trained import naming, plainly, train, train_each
from stratagem_testing.workers import shared_workers
from tensor_models import TENSOR, SaveAt, below_net, go_on, tensors_at
from torch import nn
from whole_optimizers import Whitening, WholeSteps

from stratagem import ConfigError, Runtime

PLAN = below_net({**TENSOR, "tokens": "rowwise", "head": "colwise_gathered"})
RECIPES = tuple(
    WholeSteps(kind=kind, steps=6, max_norm=0.5) for kind in ("whitening", "wrapped", "norms", "adafactor")
)
SUBJECTS = {
    # The smallest parameters have fewer rows than there are ranks along `shard`.
    "fsdp": StrategySubject("fsdp", world_size=4, options={"timeout_s": 60}),
    "shard=2+tensor=2": composition("shard=2+tensor=2", 2, PLAN).at(4),
    "replicate=2+shard=2": composition("replicate=2+shard=2", 4).at(4),
}


def equals_one_process(subject: StrategySubject, recipes: tuple[WholeSteps, ...], tolerance: float) -> None:
    by_rank = subject.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, subject.shares()), tolerance)


@pytest.mark.parametrize("name", SUBJECTS)
def test_equals_one_process(name: str, tmp_path: Path) -> None:
    equals_one_process(replace(SUBJECTS[name], folder=str(tmp_path)), RECIPES, 2e-6)


AT_ONCE = {
    "one rate": (WholeSteps(kind="one rate", steps=6), 2e-6),
    "sharpness": (WholeSteps(kind="sharpness", steps=6, closure=True), 2e-6),
    # What it does with differences of gradients makes rounding errors larger.
    "lbfgs": (WholeSteps(kind="lbfgs", steps=6, closure=True), 2e-4),
}


@pytest.mark.parametrize("kind", AT_ONCE)
@pytest.mark.parametrize("name", SUBJECTS)
def test_all_parameters_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """Every rank steps all of them: one number depends on every gradient, or the closure is called again."""
    recipe, tolerance = AT_ONCE[kind]
    equals_one_process(replace(SUBJECTS[name], folder=str(tmp_path)), (recipe,), tolerance)


@pytest.mark.parametrize("name", SUBJECTS)
def test_muon(name: str, tmp_path: Path) -> None:
    """It orthogonalises in bfloat16, where a rounding error of a gradient comes to 4e-3 of a step."""
    recipe = WholeSteps(kind="muon", steps=6, max_norm=0.5)
    equals_one_process(replace(SUBJECTS[name], folder=str(tmp_path)), (recipe,), 2e-3)


def train_and_save(subject: StrategySubject, recipe: WholeSteps, step: int, path: str) -> Trained:
    """Train to the end, and save a checkpoint after a step. Run by every rank."""
    return train(subject, recipe, [SaveAt(step, path)])


HALF = 3
HALVES = WholeSteps(kind="whitening", steps=2 * HALF, max_norm=0.5)
PLACES = {**SUBJECTS, "single": StrategySubject("single", world_size=1)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def save(name: str) -> tuple[str, list[Trained]]:
        """Return a checkpoint, and what the training that wrote it came to in the end."""
        folder = tmp_path_factory.mktemp("saved")
        path = str(folder / "checkpoint")
        return path, replace(PLACES[name], folder=str(folder)).run(train_and_save, HALVES, HALF, path)

    return save


@pytest.mark.parametrize("name", ["fsdp", "shard=2+tensor=2"])
def test_continues_bit_for_bit(saved: Any, name: str, tmp_path: Path) -> None:
    path, uninterrupted = saved(name)
    for ours, theirs in zip(
        replace(PLACES[name], folder=str(tmp_path)).run(go_on, HALVES, path), uninterrupted
    ):
        assert ours.losses == theirs.losses[HALF:]
        assert all(torch.equal(ours.weights[key], theirs.weights[key]) for key in theirs.weights)


@pytest.mark.parametrize(
    ("before", "after"),
    [("fsdp", "single"), ("single", "shard=2+tensor=2"), ("shard=2+tensor=2", "fsdp")],
)
def test_continues_elsewhere(saved: Any, before: str, after: str, tmp_path: Path) -> None:
    """States of other shapes than a parameter's, counts and means are in the checkpoint, once."""
    path, _ = saved(before)
    subject = replace(PLACES[after], folder=str(tmp_path))
    ranks, plain = subject.run(go_on, HALVES, path), plainly(HALVES, subject.shares())
    for trained in ranks:
        trained.losses[:0] = plain.losses[:HALF]
        trained.rates = plain.rates
    expect_same(ranks, plain, 2e-6)


def test_what_needs_all_parameters_continues(tmp_path: Path) -> None:
    """Bit for bit on the same ranks, and in one process, with states that every rank has whole."""
    recipe, path = WholeSteps(kind="one rate", steps=2 * HALF), str(tmp_path / "checkpoint")
    subject = replace(PLACES["fsdp"], folder=str(tmp_path))
    uninterrupted = subject.run(train_and_save, recipe, HALF, path)
    for ours, theirs in zip(subject.run(go_on, recipe, path), uninterrupted):
        assert (ours.losses, ours.rates) == (theirs.losses[HALF:], theirs.rates[HALF:])
        assert all(torch.equal(ours.weights[key], theirs.weights[key]) for key in theirs.weights)
    (alone,) = replace(PLACES["single"], folder=str(tmp_path)).run(go_on, recipe, path)
    plain = plainly(recipe, PLACES["single"].shares())
    alone.losses[:0], alone.rates[:0] = plain.losses[:HALF], plain.rates[:HALF]
    expect_same([alone], plain, 2e-6)


def test_a_checkpoint_has_the_tensors_of_one_process(saved: Any) -> None:
    ours, theirs = (shared_workers().run(1, tensors_at, saved(name)[0])[0] for name in ("fsdp", "single"))
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in theirs.items()
    }
    assert any(key.endswith("/left") for key in ours)


# Your own training loop ---------------------------------------------------------------------------


FAILS: list[bool] = []


class MayFail(Whitening):
    """Raises at the end of a step while `FAILS` has something."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if FAILS:
            raise ArithmeticError("no root")


def by_hand(runtime: Any) -> dict[str, Any]:
    net = WholeSteps().net()
    before = {name: each.detach().clone() for name, each in net.named_parameters()}
    user = net
    net, optimizer = runtime.setup(net, MayFail(net.parameters()))
    tokens = torch.arange(16).view(2, 8)
    seen: dict[str, Any] = {}

    def refused(what: Any) -> str:
        try:
            what()
        except ConfigError as error:
            return str(error)
        return "nothing was refused"

    runtime.backward(net(tokens).square().mean())
    optimizer.step()
    seen["moved"] = all(not torch.equal(whole(each), before[name]) for name, each in user.named_parameters())
    seen["read"] = refused(lambda: optimizer.state[next(iter(user.parameters()))])
    seen["saved"] = refused(optimizer.state_dict)
    # As in one process, a step that raises at its end has stepped.
    (inner,) = (each for each, _ in runtime.session.set_up_modules())
    stepped = {name: whole(each) for name, each in user.named_parameters()}
    optimizer.zero_grad()
    runtime.backward(net(tokens).square().mean())
    FAILS.append(True)
    try:
        optimizer.step()
    except ArithmeticError:
        seen["raised"] = True
    FAILS.clear()
    seen["stepped"] = all(
        not torch.equal(whole(each), stepped[name]) for name, each in user.named_parameters()
    )
    seen["counts"] = sorted({each["count"] for each in inner.optimizers[0].state.values()})
    return seen


def whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def test_a_loop_that_looks_at_states_and_catches_errors() -> None:
    runtime = Runtime(
        strategy="fsdp", accelerator="cpu", devices=2, seed=7, strategy_options={"timeout_s": 60}
    )
    seen = runtime.launch(by_hand, quiet=True)
    assert seen.pop("read").startswith("optimizer.state was read or changed under fsdp, where each rank has")
    assert seen.pop("saved").startswith("fsdp keeps the states of MayFail in shards")
    assert seen == {"moved": True, "raised": True, "stepped": True, "counts": [2]}


def sent_in_a_step(runtime: Any) -> tuple[dict[str, int], int, int]:
    """Return what this rank sends in a step of Muon, in bytes by collective, and bytes of matrices and its states."""
    net = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    matrices = sum(each.numel() * each.element_size() for each in net.parameters())
    net, optimizer = runtime.setup(net, torch.optim.Muon(net.parameters(), lr=0.01))
    runtime.backward(net(torch.ones(2, 64)).square().mean())
    sent: Counter[str] = Counter()
    end = watch_traffic(lambda collective, size: sent.update({collective: size}))
    optimizer.step()
    end()
    (inner,) = (each for each, _ in runtime.session.set_up_modules())
    states = [value for state in inner.optimizers[0].state.values() for value in state.values()]
    return dict(sent), matrices, sum(each.numel() * each.element_size() for each in states if each.dim())


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_sent_and_kept(ranks: int) -> None:
    """Parameters and gradients come, and parameters go back; states stay, and are shared out equally."""
    runtime = Runtime(strategy="fsdp", accelerator="cpu", devices=ranks, strategy_options={"timeout_s": 60})
    sent, matrices, states = runtime.launch(sent_in_a_step, quiet=True)
    assert sent["all_to_all"] == 3 * matrices // ranks
    assert states == matrices // ranks
