"""Own loops that take gradients, parameters and optimizers into their own hands are equal, or refused."""

from __future__ import annotations

import pytest
from stratagem_model_parallel.conformance import whatever_can_be

from tests.parity.hands_on_rows import OF_OPTIMIZERS, OF_REPLACED, ROWS
from tests.support.hands_on import Loop, column_of, run_plainly, run_program, run_rows

SHORT = (
    "scheduler_resumed",
    "norm_skips",
    "partial_window",
    "retained_graph",
    "original_called",
    "closure_adam",
    "optimizer_afterwards",
    "optimizer_hooks",
    "pcgrad",
    "layer_added",
    "changed_within_no_sync",
    "zeroed_within_no_sync",
    "parameter_of_no_module",
    "parameter_averaged_by_hand",
)
SHARDED = ("changed_within_no_sync", "dropped_within_no_sync", "copied_with_parametrization")
CUT_SEQUENCES = (
    "raw_backward_clipped",
    "clip_within_no_sync",
    "step_within_no_sync",
    "two_views",
    "retained_graph",
    "changed_within_no_sync",
)
EQUAL_ANYWHERE = (
    "decay_before_backward",
    "losses_weighed_by_norms",
    "without_an_optimizer",
    "without_an_optimizer_raw",
    "zero_grad_of_its_own",
    "weights_swapped_by_copies",
    "option_switched_on",
)
REFUSED_ON_SHARDS = {
    "clip_of_an_older_list": "had before setup()",
    "average_of_an_older_list": "had before setup()",
    "weights_swapped_by_data": "hold a copy",
    "gradients_in_one_buffer": "part of a larger tensor",
    "gradients_of_a_copy": "other values on each rank",
    "normalizer_of_its_own": "differs between ranks",
}
REFUSED_OF_OPTIMIZERS = {
    "averages_swapped_by_the_optimizer": "train can't be called where each rank has the states",
    "one_norm_from_a_rate_of_zero": "all parameters at once",
    "one_rate_for_all": "its steps change 'lr' of all",
    "moved_before_the_closure": "it changes them before its closure",
    "line_search": "all parameters at once",
}
REFUSED_ON_COPIES = {
    "assigned_before_backward": "a backward was added to it",
    "assigned_within_a_window": "a backward was added to it",
    "frozen_after_the_forward": "between a forward and the step after it",
    "attribute_switched_on": "all parameters at once",
    "members_of_groups_changed": "shared out among the ranks",
    "states_read": "optimizer.state was read or changed",
    "step_replaced_before": "was replaced before setup()",
    "gradients_of_a_copy": "differs between ranks",
    "normalizer_of_its_own": "differs between ranks",
}


def test_usual_loops_under_ddp() -> None:
    outcomes = run_rows("ddp", SHORT, devices=2)
    assert [str(each) for each in outcomes.values() if not each.is_right] == []
    assert outcomes["scheduler_resumed"].verdict == "equal"
    assert outcomes["layer_added"].verdict == "refused"
    assert outcomes["zeroed_within_no_sync"].verdict == "equal"
    assert "was changed before it was averaged" in outcomes["changed_within_no_sync"].sentence
    assert "are in no module that setup() got" in outcomes["parameter_of_no_module"].sentence
    assert outcomes["parameter_averaged_by_hand"].verdict == "equal"


def test_a_module_called_without_the_precision_is_refused() -> None:
    (outcome,) = run_rows("ddp", ["original_called"], precision="bf16-mixed").values()
    assert outcome.verdict == "refused", str(outcome)
    assert "was called without the run's precision" in outcome.sentence


def test_gradients_within_no_sync_under_fsdp() -> None:
    outcomes = run_rows("fsdp", SHARDED, devices=2)
    assert {name: each.verdict for name, each in outcomes.items()} == dict.fromkeys(SHARDED, "equal")


@pytest.mark.parametrize(
    ("strategy", "refused"), [("fsdp", REFUSED_ON_SHARDS), ("ddp_sharded", REFUSED_ON_COPIES)]
)
def test_what_a_strategy_has_replaced(strategy: str, refused: dict[str, str]) -> None:
    outcomes = run_rows(strategy, OF_REPLACED, devices=2)
    assert [str(each) for each in outcomes.values() if not each.is_right] == []
    assert {outcomes[name].verdict for name in EQUAL_ANYWHERE} == {"equal"}
    assert [name for name, words in refused.items() if words not in outcomes[name].sentence] == []


@pytest.mark.parametrize(("strategy", "refused"), [("fsdp", {}), ("ddp_sharded", REFUSED_OF_OPTIMIZERS)])
def test_optimizers_that_see_more_than_elements(strategy: str, refused: dict[str, str]) -> None:
    outcomes = run_rows(strategy, OF_OPTIMIZERS, devices=2)
    expected = {name: "refused" if name in refused else "equal" for name in OF_OPTIMIZERS}
    assert {name: each.verdict for name, each in outcomes.items()} == expected
    assert [name for name, words in refused.items() if words not in outcomes[name].sentence] == []


@pytest.mark.parametrize(
    ("strategy", "verdicts"),
    [
        ("ddp", {"frozen_after_the_forward": "refused"}),
        ("ddp_sharded", {"frozen_after_the_forward": "refused"}),
        ("fsdp", {"pcgrad": "refused", "shared_trunk": "refused"}),
        ("model_parallel", {"gradients_in_one_buffer": "equal"}),
    ],
)
def test_one_device(strategy: str, verdicts: dict[str, str]) -> None:
    outcomes = run_rows(strategy, verdicts, devices=1)
    assert {name: each.verdict for name, each in outcomes.items()} == verdicts


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded", "fsdp", "ddp_fully_sharded", "model_parallel"])
def test_each_loop_is_equal_or_refused(strategy: str, devices: int) -> None:
    outcomes = run_rows(strategy, devices=devices)
    assert [str(each) for each in outcomes.values() if not each.is_right] == []
    assert sum(each.verdict == "equal" for each in outcomes.values()) > len(ROWS) / 4


def test_gradients_of_cut_sequences() -> None:
    """Each rank has gradients of its own shards until they are reduced, however the loop gets them."""
    verdicts = dict.fromkeys(CUT_SEQUENCES, "equal") | {"pcgrad": "refused", "private_gradients": "refused"}
    outcomes = run_rows("context=2", verdicts, devices=2)
    assert {name: each.verdict for name, each in outcomes.items()} == verdicts


@pytest.mark.long
@pytest.mark.parametrize(("axes", "devices"), [("context=2", 2), ("shard=2+context=2", 4)])
def test_each_loop_under_cut_sequences(axes: str, devices: int) -> None:
    outcomes = run_rows(axes, devices=devices)
    assert [str(each) for each in outcomes.values() if not each.is_right] == []
    assert sum(each.verdict == "equal" for each in outcomes.values()) > len(ROWS) / 2


@pytest.mark.long
def test_two_modules_under_two_axes() -> None:
    options = {"axes": "shard=2+tensor=2", "axis_options": {"tensor": {"parallelize": whatever_can_be}}}
    outcomes = run_rows("composition", ["two_modules", "fake_of_one_forward"], devices=4, options=options)
    assert {each.verdict for each in outcomes.values()} == {"equal"}, [
        str(each) for each in outcomes.values()
    ]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["bagua", "dp", "fairscale_sharded"])
def test_gradients_and_groups_of_other_engines(strategy: str) -> None:
    outcomes = run_rows(strategy, [*OF_REPLACED, "caught_and_stepped"], devices=2)
    assert [str(each) for each in outcomes.values() if not each.is_right] == []
    assert outcomes["without_an_optimizer"].verdict == "equal"


def test_plain_loops_train() -> None:
    for name, row in ROWS.items():
        ended = run_plainly(row)
        moved = [key for key, value in ended.weights.items() if not value.equal(ended.start.get(key, value))]
        assert moved or "layer_added" in name, name


def _rank_dependent(run: Loop) -> None:
    ROWS["plain_steps"](run)
    run.note("rank", run.ranks)


def _failing(run: Loop) -> None:
    if run.ranks > 1:
        raise ArithmeticError("one too many")


def test_verdicts() -> None:
    column = column_of("ddp", 2)
    wrong = run_program(_rank_dependent, "note", column)
    assert (wrong.verdict, wrong.sentence) == ("wrong", "rank is 2.0 on rank 0, and 1.0 in one process")
    raw = run_program(_failing, "raw", column)
    assert (raw.verdict, raw.sentence) == ("raw", "ArithmeticError: one too many")
