"""What context_parallel can't do is refused in a sentence, before a step."""

from __future__ import annotations

from typing import Any

import pytest
from long_sequences import REFUSED, of_class, refusals
from stratagem_model_parallel import ContextParallelStrategy
from stratagem_testing import StrategySubject

import stratagem
from stratagem.config import RunConfig
from stratagem.resolve.run import assemble

SENTENCES = {
    "eager": "computed no attention by torch.nn.functional.scaled_dot_product_attention",
    "own mask": r"got a mask of shape (8, 8), and a sequence has 16 tokens, 8 on each of 2 ranks: make the mask of",
    "in place": "what attention returned was changed in place",
    "cross": "leave blocks with cross attention",
    "shortening": "takes blocks that return their activations alone, with the sequence's 8 tokens of this rank",
    "weights": "need_weights=False",
    "odd": '3 can\'t be distributed equally among 2 ranks: choose attention="ring"',
    "recomputed within": "checkpoint whole blocks",
    "compiled": "'blocks.0' is compiled",
    "without the first": "'blocks.1' was called before 'blocks.0'",
    "without the last": "ended before the last block in its row",
    "tokenwise": 'give it the style "block"',
    "no such style": "the plan gives 'blocks.0' the style 'colwise'",
    "no such argument": "the plan cuts 'hidden' of 'blocks.0', whose forward has no such argument: it has x, rope",
    "no such module": "the plan names 'layers.*'",
    "nested": "the plan cuts sequences before 'blocks.0' and again before 'blocks.0.feed'",
    "hooked": "'blocks.0.feed.0.weight' has a hook on its gradient",
    "learned biases": "has no gradients of a mask",
    "unknown": "the built-in plans know no block of Sequential",
}


def subject(world_size: int, **options: Any) -> StrategySubject:
    return StrategySubject(
        "context_parallel",
        options={"timeout_s": 60, "parallelize": of_class, **options},
        data_ranks=one,
        world_size=world_size,
    )


def one(world_size: int) -> int:
    return 1


def test_nets() -> None:
    assert SENTENCES.keys() == REFUSED.keys()
    planned = [name for name in REFUSED if name not in ("unknown", "learned biases")]
    for reported in subject(2).run(refusals, planned):
        assert {name: reported[name] for name in planned if SENTENCES[name] not in reported[name]} == {}


def test_masks_that_are_trained_in_a_ring() -> None:
    reported = subject(2, attention="ring").run(refusals, ["learned biases"])[0]["learned biases"]
    assert SENTENCES["learned biases"] in reported


def test_a_net_without_a_block_that_is_known() -> None:
    assert SENTENCES["unknown"] in subject(2, parallelize=None).run(refusals, ["unknown"])[0]["unknown"]


@pytest.mark.parametrize("length", [15, 2])
def test_lengths(length: int) -> None:
    reported = subject(2).run(refusals, ["eager"], length)[0]["eager"]
    assert (
        f"in 2 equal shards, and this one has {length} tokens: pad them to a multiple of 2, at least 4"
        in reported
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"context_parallel_size": 0}, "context_parallel_size=0 is no number of processes"),
        ({"attention": "flash"}, "attention='flash' must be one of ulysses, ring"),
        ({"ddp_comm_hook": "fp16"}, "context_parallel has no setting 'ddp_comm_hook'"),
        ({"bucket_cap": 1}, "has no setting 'bucket_cap'"),
    ],
)
def test_values_that_do_not_exist(given: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        ContextParallelStrategy(**given)


def test_a_mesh_that_does_not_multiply_to_the_processes() -> None:
    options = {"context_parallel_size": 3}
    with pytest.raises(
        stratagem.ConfigError, match="give sizes that multiply to 4, such as context_parallel_size=2"
    ):
        assemble(
            RunConfig(strategy="context_parallel", strategy_options=options, accelerator="cpu", devices=4)
        )
