"""The raw-loop facade and the collectives, on real processes."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging import Twins
from small import Line, samples
from stratagem_ddp import DDPStrategy
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError, WorkerError


def on_ranks(world_size: int, function: Any, *args: Any, **how: Any) -> Any:
    """Run `function(runtime, *args)` on forked ranks; returns rank 0's value."""
    strategy = DDPStrategy(start_method="fork", **{"timeout": timedelta(seconds=120), **how.pop("ddp", {})})
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=world_size, seed=3, **how)
    return runtime.launch(function, *args, quiet=True)


def train(runtime: Any, steps: int, save: str | None = None, load: str | None = None) -> Any:
    model = Line()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    wrapped, optimizer = runtime.setup(model, optimizer)
    state = runtime.load(load) if load is not None else {"step": 0}
    loader = runtime.dataloader(DataLoader(samples(), 12 // runtime.world_size, shuffle=True))
    losses = []
    for step, (x, y) in enumerate(loader):
        if step < state["step"] or step >= steps:
            continue
        loss = F.mse_loss(wrapped(x), y)
        runtime.backward(loss)
        norm = runtime.clip(optimizer, max_norm=1.0)
        assert norm is not None
        optimizer.step()
        optimizer.zero_grad()
        losses.append(runtime.all_reduce(loss).item())
    if save is not None:
        runtime.save(save, {"step": steps})
    return losses, {name: value.tolist() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_raw_loop_equals_plain_torch(world_size: int) -> None:
    losses, weights = on_ranks(world_size, train, 4)
    plain = Line()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    x, y = samples().tensors
    order = list(stratagem.ShardedSampler(48, seed=3))
    expected = []
    for start in range(0, 48, 12):
        chosen = order[start : start + 12]
        loss = F.mse_loss(plain(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(torch.tensor(weights["layer.weight"]), plain.layer.weight.detach())


def rebuild(runtime: Any, path: str) -> tuple[list[float], Any]:
    with pytest.raises(ConfigError, match=r"call setup\(\) first, or saved_state"):
        runtime.load(path)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    saved = runtime.saved_state(path)
    assert torch.equal(before, torch.get_rng_state())
    model = torch.nn.Linear(**saved["arguments"])
    runtime.setup(model)
    assert runtime.load(path) == saved
    return model.weight.flatten().tolist(), saved["step"]


def build(runtime: Any, path: str) -> list[float]:
    arguments = {"in_features": 3, "out_features": 2}
    model = torch.nn.Linear(**arguments)
    runtime.setup(model)
    runtime.save(path, {"arguments": arguments, "step": 7})
    return model.weight.flatten().tolist()


def test_a_models_arguments_come_back_before_there_is_a_model(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    weights = on_ranks(1, build, path)
    assert on_ranks(2, rebuild, path) == (weights, 7)


def draw_by_part(runtime: Any, path: str, *, saves: bool) -> list[float]:
    runtime.setup(Line())
    torch.manual_seed(runtime.data_rank)
    runtime.save(path) if saves else runtime.load(path)
    return list(runtime.collectives.data.gather_objects(torch.rand(()).item()))


def test_ranks_that_shared_a_copy_draw_apart_where_they_do_not(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    shared = stratagem.Runtime(strategy=Twins(), accelerator="cpu", devices=4)
    drawn = shared.launch(partial(draw_by_part, path=path, saves=True), quiet=True)
    assert drawn[0] != drawn[1]
    # Ranks 0 and 1 had drawn alike.
    apart = on_ranks(2, partial(draw_by_part, path=path, saves=False))
    assert apart == drawn


def test_saves_on_two_ranks_and_loads_on_one(tmp_path: Path) -> None:
    path = str(tmp_path / "ckpt")
    whole = on_ranks(2, train, 4)
    on_ranks(2, train, 2, path)
    rest = on_ranks(1, train, 4, None, path)
    assert rest[0] == pytest.approx(whole[0][2:], abs=1e-6)
    assert torch.tensor(rest[1]["layer.weight"]) == pytest.approx(
        torch.tensor(whole[1]["layer.weight"]), abs=1e-6
    )


def differ(runtime: Any) -> None:
    raise AssertionError("never reached")


class OtherVersion:
    """An extension that isn't the same everywhere: on rank 1 it claims another origin."""

    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        collectives = yield
        original = collectives.gather_objects

        def gather(value: Any) -> Any:
            if collectives.rank == 1 and isinstance(value, tuple):
                digest, versions = value
                value = ("other" + digest, {**versions, "strategy DDPStrategy": "stratagem-ddp 0.0.9"})
            return original(value)

        collectives.gather_objects = gather
        return collectives


def test_ranks_that_run_other_versions_disagree_loudly() -> None:
    with pytest.raises(
        WorkerError, match=r"rank 1 doesn't run what rank 0 runs.*0\.0\.9 there and"
    ) as caught:
        on_ranks(2, differ, plugins=[OtherVersion()])
    assert "DigestMismatchError" in caught.value.traceback


def gather_arguments(runtime: Any, first: int, *, second: int) -> Any:
    return runtime.all_gather({"rank": runtime.rank, "sum": first + second})


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_every_rank_gets_the_arguments_and_the_keywords(start_method: str) -> None:
    strategy = DDPStrategy(start_method=start_method)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2)
    gathered = runtime.launch(gather_arguments, 1, second=2)
    assert {name: values.tolist() for name, values in gathered.items()} == {"rank": [0, 1], "sum": [3, 3]}


def accumulate(runtime: Any) -> Any:
    model = Line()
    wrapped, optimizer = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    x, y = samples().tensors
    mine = slice(runtime.rank * 8, runtime.rank * 8 + 8)
    first, second = x[mine].chunk(2), y[mine].chunk(2)
    with runtime.no_sync():
        runtime.backward(F.mse_loss(wrapped(first[0]), second[0]) / 2)
    alone = model.layer.weight.grad.clone()
    apart = runtime.all_gather(alone)
    runtime.backward(F.mse_loss(wrapped(first[1]), second[1]) / 2)
    together = runtime.all_gather(model.layer.weight.grad)
    optimizer.step()
    return torch.equal(apart[0], apart[1]), torch.equal(together[0], together[1]), model.layer.weight.tolist()


def test_no_sync_keeps_gradients_apart_until_the_window_ends() -> None:
    was_same, is_same, weight = on_ranks(2, accumulate)
    assert (was_same, is_same) == (False, True)
    plain = Line()
    x, y = samples().tensors
    F.mse_loss(plain(x[:16]), y[:16]).backward()
    expected = plain.layer.weight.detach() - 0.1 * plain.layer.weight.grad
    torch.testing.assert_close(torch.tensor(weight), expected)


def test_a_script_under_torchrun_needs_no_change(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import stratagem\n"
        "runtime = stratagem.Runtime(strategy='ddp', accelerator='cpu')\n"
        "runtime.launch()\n"
        "said = f\"rank {runtime.rank} of {runtime.world_size} {runtime.broadcast('hello')}\"\n"
        # torchrun's workers are unbuffered: print writes the end of a line on its own, where ranks mix.
        "print(said + chr(10), end='')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 hello", "rank 1 of 2 hello"]
    assert "made by torchelastic" in done.stderr
