"""A plugin that imports torch where it only declares is caught."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_testing import StrategySubject, run_check
from stratagem_testing.strategies.declaration import check_light_plugin

from stratagem import Strategy


class _Own(Strategy):
    """A class that no distribution offers."""


LIGHT = check_light_plugin.conformance  # type: ignore[attr-defined]  # the decorator sets it
COMPUTES = "import time\nuntil = time.process_time() + 0.5\nwhile time.process_time() < until: pass"
DECLARE = '"strategy", "{name}", "stratagem.strategies.base:Strategy", "one process"'


def test_an_installed_plugin_is_light() -> None:
    assert run_check(LIGHT, StrategySubject("single")).verdict == "passed"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import torch", "imports numpy, torch: import it in the strategy's module"),
        (COMPUTES, "times the CPU time of importing the core, more than 0.3"),
    ],
)
def test_a_heavy_plugin_is_caught(site: Any, line: str, words: str) -> None:
    site.install(
        "heavy",
        f"{line}\n"
        "from stratagem.plugin.component import Component\n"
        "from stratagem.plugin.hookspecs import hookimpl\n"
        "@hookimpl\n"
        "def stratagem_components():\n"
        f"    return [Component({DECLARE.format(name='heavy')})]\n",
    )
    outcome = run_check(LIGHT, StrategySubject("heavy"))
    assert outcome.verdict == "failed"
    assert words in outcome.reason


def test_a_class_without_an_entry_point_has_nothing_to_import() -> None:
    outcome = run_check(LIGHT, StrategySubject(_Own))
    assert (outcome.verdict, outcome.reason) == (
        "skipped",
        "it is not from a distribution, so it has no entry point",
    )
