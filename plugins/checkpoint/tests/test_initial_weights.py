"""Renaming, and the report of what was loaded."""

import pytest
from stratagem_checkpoint.initial_weights import WeightsReport, renamed, some


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("net.a.w", "body.a.w"),
        ("net.head.w", "top.w"),
        ("other.net.w", "other.net.w"),
        ("drop.w", "w"),
        ("net.", "body."),
    ],
)
def test_the_longest_beginning_counts(name: str, new: str) -> None:
    assert renamed(name, {"net.": "body.", "net.head.": "top.", "drop.": ""}) == new


def test_the_report_reads_as_a_sentence() -> None:
    report = WeightsReport("runs/a", ("w", "b"), ("head.w",), tuple("abcdef"), {}, ("embed.w",))
    assert str(report) == (
        "2 tensors from runs/a; 1 missing there, which keep their values: head.w; 6 unexpected, which are left out: "
        "a, b, c, d and 2 more; 1 skipped: embed.w"
    )
    assert some([]) == "nothing"
