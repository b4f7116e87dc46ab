"""The list of planted faults is whole, and the recorded scores are about it."""

import re
from pathlib import Path

from tests.planted.__main__ import AREAS, all_faults, impossible, scores

PAGE = Path(__file__).parents[2] / "docs/writing-a-plugin.md"


def test_each_fault_of_the_file_is_planted_or_impossible_for_a_reason():
    assert all(len(reason.split()) > 4 for reason in impossible().values())


def test_names_are_unique_within_an_area():
    names = [(fault.area, fault.name, is_further) for fault, _, is_further in all_faults()]
    assert len(names) == len(set(names))
    assert {area for area, *_ in names} == set(AREAS)


def test_the_recorded_scores_are_of_these_faults():
    recorded = re.findall(
        r"^\| (\w+) \| (\d+) \| \d+ \| (\d+) \| \d+ \| \d+% \|$", PAGE.read_text(), re.MULTILINE
    )
    planted = [(score.area, str(score.own), str(score.further)) for score in scores(all_faults())]
    assert recorded == planted, "run `make planted`, and copy its table into docs/writing-a-plugin.md"
