"""Wrong use is refused with what to change, before anything is started where that can be known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stratagem_model_parallel import ModelParallelStrategy
from stratagem_testing import StrategySubject
from stratagem_testing.workers import RankError
from tensor_models import SEQUENCE, OwnPlan, Sentences, below_net, train_class

import stratagem
from stratagem.config import RunConfig
from stratagem.resolve.run import assemble


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tensor_parallel_size": 0},
            "tensor_parallel_size=0 is no number of processes: give a positive integer",
        ),
        ({"data_parallel_size": "all"}, "data_parallel_size='all' is no number of processes"),
        ({"start_method": "thread"}, "start_method='thread' must be one of"),
        ({"timeout": timedelta(1), "timeout_s": 3.0}, "say the same thing"),
        ({"parallelize": {}, "sequence_parallel": True}, "sequence_parallel belongs to the built-in plans"),
    ],
)
def test_values_that_do_not_exist(given: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        ModelParallelStrategy(**given)


@pytest.mark.parametrize(
    ("options", "devices", "message"),
    [
        (
            {"tensor_parallel_size": 3},
            4,
            r"a mesh of 1 × 3, and the run has 4 processes: give sizes that multiply to 4, such as "
            "tensor_parallel_size=2",
        ),
        ({"tensor_parallel_size": 2, "data_parallel_size": 3}, 4, "a mesh of 3 × 2, and the run has 4"),
        ({"data_parallel_size": 8}, 4, "a mesh of 8 × 1, and the run has 4 processes"),
    ],
)
def test_meshes_that_do_not_multiply_to_the_processes(
    options: dict[str, Any], devices: int, message: str
) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        assemble(
            RunConfig(strategy="model_parallel", strategy_options=options, accelerator="cpu", devices=devices)
        )


def test_scaled_losses() -> None:
    with pytest.raises(
        stratagem.PrecisionError, match="precision '16-mixed' doesn't work with this strategy"
    ):
        assemble(RunConfig(strategy="model_parallel", accelerator="cpu", devices=2, precision="16-mixed"))


def test_a_mesh_without_a_run() -> None:
    with pytest.raises(stratagem.StratagemError, match="ModelParallelStrategy has ranks only during a run"):
        _ = ModelParallelStrategy().device_mesh


class Tied(OwnPlan):
    """Its head has the embedding's weight."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.net.head.weight = self.net.tokens.weight

    def parallelize(self, mesh: Any) -> dict[str, Any]:
        return {"net.tokens": "colwise", "net.head": "colwise_gathered"}


class Compiled(OwnPlan):
    """One of its blocks is compiled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.net.blocks[1].compile(backend="eager")


class ShardsItself(OwnPlan):
    """Calls what the strategy calls."""

    def parallelize(self, mesh: Any) -> Any:
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.net.blocks[0], mesh=mesh["data"])


class Returns(OwnPlan):
    """Returns no plan."""

    def parallelize(self, mesh: Any) -> Any:
        return 3


class Whole(OwnPlan):
    """Forgets one of the norms that are computed on shards of the sequence."""

    def parallelize(self, mesh: Any) -> Any:
        return below_net({name: style for name, style in SEQUENCE.items() if name != "blocks.*.norm2"})


class Odd(OwnPlan):
    """Its blocks cut sequences of 8 tokens, of which one is left out."""

    def parallelize(self, mesh: Any) -> Any:
        return {"net.blocks.0": "enter_sequence"}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net.blocks[0](self.net.tokens(batch[0][:, 1:])).sum()


@pytest.mark.parametrize(
    ("options", "model", "module", "message"),
    [
        (
            {"parallelize": {"net.blocks.*.attention.w": "colwise"}},
            "transformer",
            None,
            r"the plan names 'net.blocks.\*.attention.w', and RecipeModule has no such module: the closest are "
            "'net.blocks.[01].attention",
        ),
        (
            {"parallelize": {"net.head": "colums"}},
            "transformer",
            None,
            "the plan gives 'net.head' the style 'colums': give a torch.distributed.tensor.parallel.ParallelStyle, "
            "or one of colwise",
        ),
        (
            {"parallelize": {"net.norm": "rowwise"}},
            "transformer",
            None,
            "the plan gives 'net.norm', a LayerNorm, the style 'rowwise', which is for Linear, Embedding",
        ),
        ({"parallelize": 5}, "transformer", None, "parallelize=5 is a int: give a dict"),
        (
            {},
            "transformer",
            None,
            "the built-in plans know no block of RecipeModule, so that nothing would be split",
        ),
        (
            {"sequence_parallel": True},
            "transformer",
            None,
            "sequence_parallel=True, and the built-in plans know no block of RecipeModule",
        ),
        ({"loss_parallel": True}, "encoder", None, "loss_parallel needs a last layer that is split"),
        (
            {},
            "encoder-one",
            None,
            "'net.encoder.layers.0' has self_attn.num_heads=1, which can't be distributed equally among 2 ranks",
        ),
        (
            {},
            "transformer",
            Tied,
            r"'net.tokens.weight' and 'net.head.weight' are one parameter, and the plan splits it as "
            r"\(Shard\(dim=1\),\) in one place and as \(Shard\(dim=0\),\) in the other",
        ),
        ({}, "transformer", Compiled, "'net.blocks.1' is compiled, and torch trains compiled blocks wrongly"),
        ({}, "transformer", ShardsItself, "the plan called fully_shard: leave that out"),
        ({}, "transformer", Returns, "Returns.parallelize returned a int: return a dict of module names"),
        (
            {},
            "transformer",
            Whole,
            "different gradients of 'net.blocks.0.norm2.weight', which each of them has whole",
        ),
        ({}, "transformer", Odd, "cuts sequences in 2 equal parts, and this one has 7 tokens"),
    ],
)
def test_modules_and_plans_that_do_not_fit(
    options: dict[str, Any], model: str, module: Any, message: str, tmp_path: Any
) -> None:
    subject = StrategySubject(
        "model_parallel",
        options={"timeout_s": 30, **options},
        data_ranks=one,
        world_size=2,
        folder=str(tmp_path),
    )
    with pytest.raises(RankError, match=message):
        subject.run(train_class, Sentences(model=model, steps=2), module)


def one(world_size: int) -> int:
    return 1


def test_compiled_modules_that_are_not_split(tmp_path: Any) -> None:
    subject = StrategySubject(
        "model_parallel",
        options={"timeout_s": 30, "tensor_parallel_size": 1},
        world_size=2,
        folder=str(tmp_path),
    )
    trained = subject.run(train_class, Sentences(steps=2), Compiled)
    assert [each.steps for each in trained] == [2, 2]
