"""Figures of a run."""

from pathlib import Path

import pytest
from records import row, write_rank
from stratagem_report.reading import read_run
from stratagem_report.slowness import slow_ranks
from stratagem_report.summary import in_buckets, summarize

MS = 1_000_000


def test_a_rank_that_is_30_percent_slower_is_named() -> None:
    (slow,) = slow_ranks([10 * MS, 10.2 * MS, 13 * MS, 9.9 * MS])
    assert (slow.rank, round(slow.ratio, 2)) == (2, 1.3)
    assert slow_ranks([10 * MS, 11 * MS]) == []


def test_a_millisecond_is_noise() -> None:
    assert slow_ranks([0.5 * MS, 0.9 * MS]) == []


def test_one_rank_has_no_other_to_compare_with() -> None:
    assert slow_ranks([10 * MS]) == []


def test_speed_counts_all_ranks_and_only_training(tmp_path: Path) -> None:
    step = row(samples=32, forward=4, backward=4, communication=1, optimizer=1, validation=90)
    for rank in range(2):
        write_rank(tmp_path, [row(0, 0, start=1000), *[step] * 20], rank=rank, world_size=2)
    summary = summarize(read_run(str(tmp_path)))
    assert summary.steps == 20
    assert summary.steps_per_s == pytest.approx(100)
    assert summary.samples_per_s == pytest.approx(6400)
    assert summary.outcome == "ended well"


def test_ranks_that_share_a_model_share_their_samples(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, [row(samples=32, forward=10)] * 20, rank=rank, world_size=2, data_ranks=1)
    assert summarize(read_run(str(tmp_path))).samples_per_s == pytest.approx(3200)


def test_buckets_keep_every_step_and_every_nanosecond(tmp_path: Path) -> None:
    rows = [row(0, 0, start=500), *[row(forward=7, backward=6)] * 200, row(0, 0, end=900)]
    write_rank(tmp_path, rows)
    (ranks,) = read_run(str(tmp_path)).attempts
    buckets = in_buckets(ranks)
    assert sum(buckets.steps_per_s) * buckets.span_s == pytest.approx(200)
    assert sum(buckets.samples_per_s) * buckets.span_s == pytest.approx(6400)
    assert all(sum(shares) == pytest.approx(1) for shares in buckets.phase_shares)
    assert buckets.phase_shares[-1][-1] == pytest.approx(1)


def test_rows_of_several_steps_count_as_so_many(tmp_path: Path) -> None:
    write_rank(tmp_path, [row(4, 128, forward=40)] * 10)
    summary = summarize(read_run(str(tmp_path)))
    assert (summary.steps, round(summary.steps_per_s)) == (40, 100)
    assert summary.ranks[0].step_ns[1] == summary.ranks[0].own_ns == 10 * MS


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("failed", "with an error"),
        ("stopped", "was asked to stop, and saved"),
        (None, "was killed, or still runs"),
    ],
)
def test_the_outcome_is_reported(tmp_path: Path, end: str | None, outcome: str) -> None:
    write_rank(tmp_path, [row(forward=1)], end=end)
    assert outcome in summarize(read_run(str(tmp_path))).outcome
