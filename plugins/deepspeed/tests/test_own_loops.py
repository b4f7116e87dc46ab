"""Training loops that take gradients into their own hands train as one process does, or are refused in a sentence."""

from __future__ import annotations

import pytest
from stratagem_deepspeed.conformance import SMALL

from tests.support.hands_on import check_rows

ALL, SHARDED = (0, 1, 2, 3), (1, 2, 3)
OUTSIDE = "was used outside of its layer's forward"
CALL = r"call runtime.backward\(loss\)"
ROWS: dict[str, dict[int, str]] = {
    "raw_backward": {0: r"call runtime.backward\(loss\) in the place of loss.backward\(\)"},
    "two_views": {},
    "evaluation_within_a_window": {},
    "two_forwards_and_a_window": {3: "two forwards and then two backwards"},
    "frozen_and_unfrozen": {},
    "two_forwards_two_backwards": dict.fromkeys(SHARDED, "a second backward came after"),
    "retained_graph": {**dict.fromkeys(SHARDED, "a second backward came after"), 0: CALL},
    "dropped_between_forward_and_backward": dict.fromkeys(SHARDED, "zero_grad doesn't take them back"),
    "windows_within_no_sync": dict.fromkeys(ALL, r"after a backward within runtime.no_sync\(\)"),
    "clip_of_torch": dict.fromkeys(SHARDED, "clip by runtime.clip"),
    "norm_idiom": dict.fromkeys(SHARDED, "p.grad has no values that could be read"),
    "assigned_head": {**dict.fromkeys(SHARDED, "was assigned by your code"), 0: CALL},
    "closure_sgd": dict.fromkeys(ALL, "got a closure"),
    "optimizer_hooks": dict.fromkeys(
        SHARDED, "has step hooks, and stage [123] of deepspeed steps flat shards"
    ),
    "caught_in_a_layers_backward": dict.fromkeys(
        SHARDED, "a part of the gradients of a backward that wasn't finished"
    ),
    "weights_normalized": {3: OUTSIDE},
    "weights_by_vector": {3: OUTSIDE},
    "zero_grad_of_its_own": dict.fromkeys(ALL, "overrides zero_grad"),
    "members_of_groups_changed": dict.fromkeys(SHARDED, "decide at the start what each group steps"),
    "graph_of_blocks_twice": {**dict.fromkeys(SHARDED, "a second backward came after"), 0: CALL},
    "states_read": dict.fromkeys(SHARDED, "optimizer.state was read or changed"),
    "frozen_after_the_forward": dict.fromkeys(SHARDED, "between a forward and its backward"),
    "gradients_in_one_buffer": {**dict.fromkeys((0, 1, 2), "part of a larger tensor"), 3: OUTSIDE},
    "assigned_within_a_window": {
        **dict.fromkeys((0, 1), r"was changed within runtime.no_sync\(\)"),
        **dict.fromkeys((2, 3), "p.grad has no values"),
    },
    "accumulate": {},
    "state_round_trip": dict.fromkeys(SHARDED, "in shards, so that no rank has its state_dict"),
    "head_replaced": {
        **dict.fromkeys((0, 1, 2), r"setup\(\) didn't get it"),
        3: r"was put into the module after setup\(\)",
    },
    "empty_parameter": {3: "has no elements"},
    "optimizer_afterwards": dict.fromkeys(ALL, r"setup\(\) got no optimizer with Sequential"),
}
"""Row → stage → what the sentence says where it is refused."""


@pytest.mark.parametrize("stage", ALL)
def test_a_loop_equals_one_process_or_is_refused(stage: int) -> None:
    refused = {name: ROWS[name][stage] for name in ROWS if stage in ROWS[name]}
    check_rows(f"deepspeed_stage_{stage}", list(ROWS), refused, **SMALL)


@pytest.mark.parametrize("stage", ALL)
def test_gradients_of_a_module_without_an_optimizer_are_refused(stage: int) -> None:
    row = "without_an_optimizer_raw"
    check_rows(f"deepspeed_stage_{stage}", [row], {row: r"setup\(\) got no optimizer with"}, **SMALL)
