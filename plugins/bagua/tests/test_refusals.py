"""What bagua can't do is refused in a sentence, as early as it can be known."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_bagua import BaguaStrategy

import stratagem
from stratagem.sdk.runs import assemble, run_config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "adam"}, "algorithm='adam' must be one of gradient_allreduce, bytegrad"),
        ({"hierarchical": True}, "hierarchical=True is not available"),
        ({"flatten": False}, "flatten=False is not available"),
        (
            {"communication_interval": 2},
            "'gradient_allreduce' has no setting 'communication_interval'; it has av",
        ),
        ({"algorithm": "decentralized", "average": False}, "'decentralized' has no setting 'average'"),
        ({"algorithm": "decentralized", "communication_interval": 0}, "must be at least 1 optimizer step"),
        ({"algorithm": "qadam", "warmup_steps": 9}, "no setting 'warmup_steps'; give it to .*QAdamOptimizer"),
        ({"algorithm": "qadam", "average": False}, "'qadam' has no setting 'average'; leave it out"),
        (
            {"algorithm": "async", "communication_interval": 2},
            "has no setting 'communication_interval'; it has p",
        ),
        ({"algorithm": "async", "peer_selection_mode": "shift_one"}, 'peer_selection_mode=.* must be "all"$'),
        ({"algorithm": "async", "sync_interval_ms": 0}, "sync_interval_ms=0 must be at least 1 millisecond"),
        (
            {"algorithm": "async", "warmup_steps": -1},
            "warmup_steps=-1 must be a number of optimizer steps, or 0",
        ),
        (
            {"algorithm": "decentralized", "peer_selection_mode": "ring"},
            '\'ring\' must be "all" or "shift_one"',
        ),
    ],
)
def test_what_cant_be_is_refused_by_the_constructor(options: dict[str, Any], words: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        BaguaStrategy(**options)


def test_an_odd_number_of_ranks_makes_no_pairs() -> None:
    strategy = BaguaStrategy("decentralized", peer_selection_mode="shift_one")
    with pytest.raises(stratagem.ConfigError, match="makes pairs of ranks, and this run has 3: choose"):
        assemble(run_config("test", (), strategy=strategy, accelerator="cpu", devices=3))


@pytest.mark.parametrize("name", ["bagua_decentralized", "bagua_qadam", "bagua_async"])
def test_ranks_with_gradients_of_their_own_may_not_skip_steps_by_themselves(name: str) -> None:
    with pytest.raises(stratagem.UsageError, match="precision '16-mixed' doesn't work with this strategy"):
        stratagem.Runtime(name, accelerator="cpu", devices=2, precision="16-mixed").launch(print)
