"""What can't be composed is refused in a sentence, before anything is started where that can be known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mesh_subjects import composition
from stratagem_fsdp import ReplicateAxis, ShardAxis
from stratagem_mesh import ComposedStrategy, compose
from stratagem_model_parallel import ContextAxis, TensorAxis
from stratagem_testing.trained import train_each
from stratagem_testing.workers import RankError
from tensor_models import SEQUENCE, VOCABULARY, Sentences, below_net
from torch import Tensor, nn

from stratagem import CombinationError, ConfigError, PrecisionError, RunConfig, StratagemError
from stratagem.errors import UnknownNameError
from stratagem.resolve.run import assemble


def test_the_same_in_python() -> None:
    given = compose(TensorAxis(2, sequence_parallel=True), ShardAxis(), timeout_s=5)
    assert given.composition.described() == "shard=auto+tensor=2"
    assert given.timeout.total_seconds() == 5
    by_text = ComposedStrategy("shard+tensor=2", axis_options={"tensor": {"sequence_parallel": True}})
    assert [vars(axis) for axis in by_text.axes] == [vars(axis) for axis in given.axes]


def test_replicas_are_copies_of_shards_on_one_rank_at_least() -> None:
    assert compose(ReplicateAxis(2), TensorAxis(2)).composition.sizes(4) == {
        "replicate": 2,
        "shard": 1,
        "tensor": 2,
    }


@pytest.mark.parametrize(
    ("axes", "options", "error", "message"),
    [
        ("shard=2+tensr=2", {}, UnknownNameError, "no axis is called 'tensr'; nearest: tensor"),
        ("shard=2+shard=2", {}, ConfigError, "axis 'shard' is given twice"),
        ("shard+tensor", {}, ConfigError, "both have the size 'auto', the rest of the ranks"),
        ("shard=2", {"tensor": {}}, ConfigError, "axis_options has options of 'tensor', which is no axis"),
        (
            "shard=2",
            {"shard": {"size": 3}},
            ConfigError,
            "axis 'shard' has no setting 'size'; it has auto_wrap_policy",
        ),
        (
            "tensor=2",
            {"tensor": {"plan": {}}},
            ConfigError,
            "axis 'tensor' has no setting 'plan'; it has parallelize",
        ),
        (
            "tensor=2",
            {"tensor": {"parallelize": {}, "sequence_parallel": True}},
            ConfigError,
            "sequence_parallel belongs to the built-in plans",
        ),
    ],
)
def test_settings_that_do_not_exist(axes: str, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ComposedStrategy(axes, axis_options=options)


def test_precisions_that_an_axis_does_not_have() -> None:
    with pytest.raises(PrecisionError, match="precision '16-mixed' doesn't work with this strategy"):
        assemble(
            RunConfig(strategy="shard=2+tensor=2", accelerator="cpu", devices=4, precision="16-mixed"), {}
        )


def test_a_model_that_an_axis_cannot_split(tmp_path: Path) -> None:
    """One head among two ranks."""
    subject = replace(composition("shard=2+tensor=2", 2, None), world_size=4, folder=str(tmp_path))
    with pytest.raises(RankError) as refused:
        subject.run(train_each, [Sentences(model="encoder-one", steps=1)])
    assert isinstance(refused.value.error, StratagemError)
    assert "num_heads=1, which can't be distributed equally among 2 ranks" in str(refused.value.error)


@dataclass(frozen=True)
class OneOutput(Sentences):
    """The last layer has one output, and only some ranks have a part of it."""

    def net(self) -> nn.Module:
        return nn.Sequential(super().net(), nn.Linear(VOCABULARY, 1))

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        return net(batch[0]).square().mean()


def test_layers_of_which_some_ranks_have_nothing(tmp_path: Path) -> None:
    subject = composition("shard=2+tensor=2", 2, {"net.1": "colwise_gathered"})
    with pytest.raises(RankError) as refused:
        replace(subject, world_size=4, folder=str(tmp_path)).run(train_each, [OneOutput(steps=1)])
    assert isinstance(refused.value.error, ConfigError)
    assert "'net.1.weight' of shape (1, 16) is split among 2 ranks" in str(refused.value.error)


def test_sequences_that_two_axes_cut(tmp_path: Path) -> None:
    """A plan whose styles cut sequences before the blocks: shards of shards would attend to each other."""
    blocks = {"parallelize": {"net.blocks.*": "block"}}
    subject = composition("context=2+tensor=2", 1, below_net(SEQUENCE), context=blocks)
    with pytest.raises(RankError) as refused:
        replace(subject, world_size=4, folder=str(tmp_path)).run(train_each, [Sentences(steps=1)])
    assert isinstance(refused.value.error, ConfigError)
    assert "'net.blocks.0' got activations that axis 'tensor' has in shards" in str(refused.value.error)


def test_sizes_of_all_axes_on_nodes_that_come_and_go() -> None:
    """The axis to leave without a size is one whose ranks read different batches."""
    for expression, free in (("replicate=2+tensor=2", "replicate"), ("pipeline=2+shard=2", "shard")):
        with pytest.raises(CombinationError) as refused:
            assemble(RunConfig(strategy=expression, accelerator="cpu", devices=2, num_nodes="2:4"), {})
        freed = expression.replace(f"{free}=2", free)
        what = "a number of nodes that changes while it runs"
        assert str(refused.value) == (
            f"strategy {expression!r} can't do this: {what}; leave out the size of a data axis, as in {freed}, which "
            "then follows the nodes"
        )


def test_what_composes_axes_is_not_offered_by_its_name() -> None:
    with pytest.raises(CombinationError, match="a number of nodes that changes") as refused:
        assemble(RunConfig(strategy="tensor=2", accelerator="cpu", devices=1, num_nodes="2:4"), {})
    assert "installed strategies that can: ddp, fsdp, " in str(refused.value)
    assert "composition" not in str(refused.value)


def test_sequence_parallel_with_cut_sequences() -> None:
    axes = compose(ContextAxis(2), TensorAxis(2, sequence_parallel=True))
    with pytest.raises(
        CombinationError, match="sequence_parallel=True can't be composed with axis 'context'"
    ):
        assemble(RunConfig(strategy=axes, accelerator="cpu", devices=4), {})


def test_the_plan_shows_who_shares_batches_and_what_is_sent() -> None:
    run = assemble(RunConfig(strategy="replicate=2+shard=2+tensor=auto", accelerator="cpu", devices=8), {})
    mesh, data, *axes = run.strategy.describe_run(run)
    assert mesh == "mesh: replicate 2 × shard 2 × tensor 2, outermost first"
    assert data == "data: 4 parts; ranks that read the same batches: {0, 1} {2, 3} {4, 5} {6, 7}"
    assert [line.partition(" send ")[0] for line in axes] == [
        "replicate: ranks {0, 4} {1, 5} {2, 6} {3, 7}",
        "shard: ranks {0, 2} {1, 3} {4, 6} {5, 7}",
        "tensor: ranks {0, 1} {2, 3} {4, 5} {6, 7}",
    ]
    run = assemble(RunConfig(strategy="shard=16", accelerator="cpu", devices=16), {})
    assert run.strategy.describe_run(run)[1] == "data: 16 parts, one for each rank"


def elastic(strategy: str, num_nodes: str, devices: int = 1) -> RunConfig:
    return RunConfig(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        num_nodes=num_nodes,
        rdzv_endpoint="127.0.0.1:29400",
    )


def test_the_axis_without_a_size_follows_the_number_of_machines() -> None:
    run = assemble(elastic("replicate+tensor=2", "2:4"), {})
    assert run.plan.node_unit == 2
    assert run.strategy.describe_run(run)[-1] == (
        "machines: replicate has 1 to 2 ranks as they come and go, in units of 2: machines that make no whole unit "
        "are spare and wait"
    )
    run = assemble(elastic("shard+tensor=2", "1:4", devices=2), {})
    assert run.plan.node_unit == 1
    assert run.strategy.describe_run(run)[-1] == "machines: shard has 1 to 4 ranks as they come and go"


@pytest.mark.parametrize(
    ("strategy", "num_nodes", "words"),
    [
        ("replicate+tensor=2", "1:4", "both numbers must be multiples of 2, as in 2:4"),
        ("shard+tensor=3", "3:4", "both numbers must be multiples of 3, as in 3:6"),
        ("replicate=2+tensor=2", "2:4", "a number of nodes that changes while it runs"),
        ("replicate=2+tensor", "2:4", "a number of nodes that changes while it runs"),
    ],
)
def test_machines_that_come_and_go_where_the_mesh_cannot_follow(
    strategy: str, num_nodes: str, words: str
) -> None:
    with pytest.raises(StratagemError, match=words):
        assemble(elastic(strategy, num_nodes), {})
