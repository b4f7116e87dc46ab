"""What fails on one rank fails on all, with one message."""

import pytest
import torch
from stratagem_checkpoint.agreement import on_every_rank, on_first_rank
from threads import on_threads

from stratagem.errors import CheckpointError


def failing(ranks, error):
    def work(collectives):
        def action():
            if collectives.rank in ranks:
                raise error
            return collectives.rank

        try:
            return on_every_rank(collectives, action)
        except CheckpointError as caught:
            return str(caught), caught.__cause__

    return on_threads(3, work)


def test_results_come_in_the_order_of_ranks():
    assert failing((), None) == [[0, 1, 2]] * 3


def test_all_ranks_report_the_lowest_rank_that_failed():
    error = OSError("no space")
    said = "rank 1 failed with OSError: no space"
    assert failing((1, 2), error) == [(said, None), (said, error), (said, error)]


def test_an_error_of_checkpoints_is_reported_unchanged():
    error = CheckpointError("it is damaged")
    assert [message for message, _ in failing((0,), error)] == ["it is damaged"] * 3


def test_only_the_first_rank_acts_and_all_have_what_it_returned():
    acted = []

    def work(collectives):
        def action():
            acted.append(collectives.rank)
            return torch.ones(2)

        return on_first_rank(collectives, action).tolist()

    assert on_threads(3, work) == [[1.0, 1.0]] * 3
    assert acted == [0]
    assert on_threads(2, lambda collectives: on_first_rank(collectives, lambda: None)) == [None, None]


def test_a_failure_of_the_first_rank_is_raised_on_all():
    def work(collectives):
        def action():
            raise ZeroDivisionError("oh")

        with pytest.raises(CheckpointError, match=r"^rank 0 failed with ZeroDivisionError: oh$") as caught:
            on_first_rank(collectives, action)
        return type(caught.value.__cause__)

    assert on_threads(2, work) == [ZeroDivisionError, type(None)]
