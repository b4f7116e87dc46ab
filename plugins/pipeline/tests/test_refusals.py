"""What a pipeline can't do is refused in a sentence, before training where it can be known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import OPTIONS, Recipe, Skips, Stack, one_copy, stack
from stratagem_testing import StrategySubject
from stratagem_testing.trained import RecipeModule
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem
from stratagem.config import RunConfig
from stratagem.errors import UsageError
from stratagem.resolve.run import assemble


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"data_parallel_size": 3}, "doesn't make the 4 processes of this run"),
        ({"pipeline_parallel_size": 2}, "doesn't make the 4 processes of this run"),
        (
            {"data_parallel_size": "some"},
            "data_parallel_size=some × pipeline_parallel_size=auto doesn't make",
        ),
        ({"balance": [1, 2]}, "has 2 entries, and this pipeline 4 stages"),
        ({"micro_batches": 2}, "needs at least as many micro-batches as stages"),
        (
            {"schedule": "zbv", "activation_checkpointing": True},
            "computes gradients of inputs and of weights apart",
        ),
        ({"start_method": "wish"}, "must be one of forkserver"),
    ],
)
def test_refused_before_anything_is_launched(options: dict[str, Any], why: str) -> None:
    trainer = stratagem.Trainer(
        strategy="pipeline", accelerator="cpu", devices=4, strategy_options=options, max_steps=1
    )
    with pytest.raises(UsageError, match=why):
        trainer.fit(RecipeModule(Stack(), 16))


def test_sizes_are_held_against_processes_that_are_there_already() -> None:
    # As torchrun makes them: two on each of two nodes.
    made = {
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
    }
    config = RunConfig(strategy="pipeline", accelerator="cpu", strategy_options={"balance": [3, 3, 3, 2]})
    assert assemble(config, made).world_size == 4
    with pytest.raises(UsageError, match="doesn't make the 4 processes of this run"):
        assemble(replace(config, strategy_options={"pipeline_parallel_size": 2}), made)


class Plain(RecipeModule):
    """A module whose parts are given as methods of a subclass."""

    def __init__(self, make: Callable[[], nn.Module] = stack) -> None:
        super().__init__(Stack(), 16)
        self.net = make()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:
            x = -x
        scores: Tensor = self.b(self.a(x))
        return scores


def not_sequential() -> Plain:
    return Plain(Skips)


def untraceable() -> Plain:
    return Plain(Untraceable)


class Two(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.other = stack()


class Never(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(batch[0][:, :4].requires_grad_(), batch[1])


class Twice(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.net(batch[0]) + self.net(-batch[0]), batch[1])


class Skipping(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)


class Ended(Plain):
    def training_step_end(self, outputs: Any) -> Any:
        return outputs[0]


class ByKeyword(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.net(input=batch[0]), batch[1])


class Scalar(Plain):
    """Its net makes a number of a batch."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(6, 4), Mean()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class Odd(Plain):
    """Its last batch has fewer samples than there are micro-batches."""

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Recipe(samples=18).dataset(), 8)


class Reaching(Plain):
    """Its loss looks at a layer of the first stage."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1]) + self.net[0].weight.square().sum()


class Counter(nn.Linear):
    """Counts its forwards in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls = self.calls + 1
        return super().forward(x)


class Counts(Plain):
    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(Counter(), nn.Linear(6, 4)))


class Normed(Plain):
    def __init__(self, **how: Any) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, **how), nn.Linear(6, 4)))


class NormedWithout(Normed):
    def __init__(self) -> None:
        super().__init__(track_running_stats=False)


class Clamping(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            self.net[0].weight.clamp_(-0.1, 0.1)
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Gathering(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.net(self.all_gather(batch[0])[0]), batch[1])


CASES: list[tuple[Any, dict[str, Any], str]] = [
    (
        Plain,
        {"micro_batches": 20},
        "a batch has 16 samples on each copy of the model, fewer than micro_batches=20",
    ),
    (
        Odd,
        {"micro_batches": 4},
        "a batch has 2 samples on each copy of the model, fewer than micro_batches=4",
    ),
    (not_sequential, {}, "has no nn.Sequential of at least two layers"),
    (not_sequential, {"pipeline_module": "net"}, "is a Skips, neither an nn.Sequential nor an nn.ModuleList"),
    (Two, {}, "has 2 nn.Sequentials that could be the pipeline, net, other"),
    (Plain, {"pipeline_module": "nett"}, "names no submodule of Plain; it has net"),
    (Plain, {"balance": [5]}, "adds up to 5, and the pipelined module has 11 layers"),
    (Plain, {"schedule": "looped_bfs", "stages_per_rank": 12}, "has 11 layers, too few for 12 stages"),
    (not_sequential, {"split_points": ["e"]}, "split_points names 'e', and net has no such submodule"),
    (untraceable, {"split_points": ["b"]}, r"torch can't trace net \(Untraceable\)"),
    (Never, {}, "never called net, the pipelined module"),
    (Twice, {}, "called net, the pipelined module, 2 times"),
    (Skipping, {}, "returned None for a part of a batch"),
    (Ended, {}, "defines training_step_end"),
    (Counts, {"micro_batches": 2}, "the buffer 'net.0.calls', once for each of the 2 parts.*micro_batches=1"),
    (
        Counts,
        {"micro_batches": 1, "activation_checkpointing": True},
        "'net.0.calls', and activation_checkpointing",
    ),
    (
        Normed,
        {"micro_batches": 2},
        "'net.1.running_mean', once for each .*batch_statistics_per_part=True",
    ),
    (
        NormedWithout,
        {"micro_batches": 2},
        "'net.1', a BatchNorm1d, normalizes each part of a batch separately",
    ),
    (Clamping, {}, "changes 'net.0.weight' in place"),
    (Gathering, {"micro_batches": 2}, "calls all_gather while it has one part of a batch.*micro_batches=1"),
    (ByKeyword, {}, "0 positional and 1 keyword arguments"),
    (Scalar, {"micro_batches": 3, "schedule": "gpipe"}, r"makes an output of shape \(\) of 6 rows"),
]


def test_refused_in_a_sentence(tmp_path: Path) -> None:
    subject = StrategySubject("pipeline", world_size=1, data_ranks=one_copy, folder=str(tmp_path))
    (reported,) = subject.run(refusals, CASES)
    for (make, options, why), (kind, message) in zip(CASES, reported):
        assert kind in ("ConfigError", "DataError", "CombinationError"), (make, options, kind, message)
        assert re.search(why, message), (make, options, message)


def test_buffers_count_once_per_batch_or_per_part_where_that_is_asked_for(tmp_path: Path) -> None:
    subject = StrategySubject("pipeline", world_size=1, data_ranks=one_copy, folder=str(tmp_path))
    (counted,) = subject.run(counts)
    assert counted == [3, 3, 6]


def counts(subject: StrategySubject) -> list[int]:
    found = []
    for make, buffer, options in (
        (Counts, "net.0.calls", {"micro_batches": 1}),
        (Normed, "net.1.num_batches_tracked", {"micro_batches": 1}),
        (Normed, "net.1.num_batches_tracked", {"micro_batches": 2, "batch_statistics_per_part": True}),
    ):
        module = make()
        replace(subject, options={**OPTIONS, **options}).trainer(max_steps=3).fit(module)
        found.append(int(module.get_buffer(buffer)))
    return found


def refusals(subject: StrategySubject, cases: list[tuple[Any, dict[str, Any], str]]) -> list[tuple[str, str]]:
    reported = []
    for make, options, _ in cases:
        here = replace(subject, options={**OPTIONS, **options})
        try:
            here.trainer(max_epochs=1).fit(make())
        except Exception as error:
            reported.append((type(error).__name__, str(error)))
        else:
            reported.append(("nothing", ""))
    return reported


def test_a_loss_of_layers_that_are_elsewhere(tmp_path: Path) -> None:
    subject = StrategySubject(
        "pipeline", world_size=2, options=OPTIONS, data_ranks=one_copy, folder=str(tmp_path)
    )
    with pytest.raises(Exception, match="that are on another rank"):
        subject.run(reach, timeout_s=200)


def reach(subject: StrategySubject) -> None:
    subject.trainer(max_steps=1).fit(Reaching())


def test_a_own_loop_evaluates_and_does_not_train(tmp_path: Path) -> None:
    subject = StrategySubject(
        "pipeline", world_size=2, options=OPTIONS, data_ranks=one_copy, folder=str(tmp_path)
    )
    for apart, refused in subject.run(raw_loop):
        assert apart < 1e-6
        assert "train with stratagem.Trainer" in refused


def raw_loop(subject: StrategySubject) -> tuple[float, str]:
    return subject.runtime().launch(in_loop, quiet=True)


def in_loop(runtime: Any) -> tuple[float, str]:
    x = torch.arange(42.0).view(7, 6) / 42
    net = Stack().net()
    with torch.no_grad():
        expected = net.eval()(x)
    apart = float((runtime.setup(Stack().net().eval()).eval()(x) - expected).abs().max())
    try:
        runtime.setup(Stack().net(), lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    except UsageError as error:
        return apart, str(error)
    return apart, ""


class _Fails(RecipeModule):
    """A layer raises in the third batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.net.get_submodule("0").register_forward_hook(_fail)


def _fail(*_: Any) -> None:
    raise ArithmeticError("this layer fails")


def _error_of(subject: StrategySubject) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is asserted
        subject.trainer(max_steps=5).fit(_Fails(Recipe(), 16))
    return repr(caught.value)


def test_what_a_layer_raises_is_raised_as_it_is(tmp_path: Path) -> None:
    subject = StrategySubject("pipeline", world_size=1, data_ranks=one_copy, folder=str(tmp_path))
    assert subject.run(_error_of) == ["ArithmeticError('this layer fails')"]
