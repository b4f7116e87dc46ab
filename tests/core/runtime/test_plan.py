"""The printed plan: reasons in one column, and no line that a terminal of 100 columns would wrap."""

from __future__ import annotations

import re
import sys

import pytest

from stratagem import RunConfig
from stratagem.resolve.run import assemble
from stratagem.runtime.plan import announce, announce_by_value, announce_data
from stratagem.sdk.catalogue import load_catalogue

LONG = "a_strategy_whose_authors_gave_it_the_longest_name_of_all"
NODES = {"devices": 2, "num_nodes": "2:4", "rdzv_endpoint": "login-node-01.cluster.internal:29400"}


def longest(kind: str) -> str:
    """Return the longest installed name that runs on this machine."""
    runs_here = [c for c in load_catalogue().of_kind(kind) if "xla" not in c.origin.distribution]
    return max((name for each in runs_here for name in each.names()), key=len)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="all automatic"),
        pytest.param({"strategy": longest("strategy"), "devices": 2}, id="the longest installed name"),
        pytest.param({"strategy": "deepspeed_stage_3_offload", "devices": 2}, id="lines of a strategy"),
        pytest.param({"strategy": "ddp", "accelerator": "cpu", **NODES}, id="several nodes"),
    ],
)
def test_no_line_is_longer_than_100_columns(config, capsys) -> None:
    announce(assemble(RunConfig(**config), {}))
    announce_data(f"1,281,167 samples, shuffled with seed 0 over 2 ranks, {'so ' * 40}", "none")
    announce_by_value([f"research.models.transformer.Block{i}.<locals>.initialise" for i in range(9)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "plan"
    assert [line for line in lines if len(line) > 100] == []
    assert all(line.startswith("  ") for line in lines[1:])


def test_reasons_begin_in_one_column_and_go_on_in_it(capsys) -> None:
    announce(assemble(RunConfig(), {}))
    lines = capsys.readouterr().err.splitlines()
    reasons = ("in this process", "auto: 1 device", "auto: ", "no launcher has set")
    starts = {line.index(reason) for reason in reasons for line in lines if f"  {reason}" in line}
    assert len(starts) == 1
    continued = [line for line in lines if line.startswith(" " * 15)]
    assert {len(line) - len(line.lstrip()) for line in continued} <= starts


@pytest.mark.parametrize("name", ["ddp", "context_parallel"])
def test_distributions_begin_in_one_column(name: str, capsys) -> None:
    announce(assemble(RunConfig(strategy=name, accelerator="cpu", devices=2), {}))
    lines = capsys.readouterr().err.splitlines()
    assert len({line.index(" stratagem-") for line in lines if " stratagem-" in line}) == 1


def test_a_name_that_fills_the_line_has_its_reason_below(site, capsys) -> None:
    distribution = f"the-distribution-of-{LONG.replace('_', '-')}"
    site.offer(distribution, f'"strategy", "{LONG}", "stratagem_ddp:DDPStrategy", "long"')
    announce(assemble(RunConfig(strategy=LONG, accelerator="cpu"), {}))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert LONG in "\n".join(lines)
    assert distribution in "\n".join(lines)


def test_labels_are_coloured_on_a_terminal_alone(capsys, monkeypatch) -> None:
    def printed() -> str:
        announce(assemble(RunConfig(strategy="single", accelerator="cpu"), {}))
        return capsys.readouterr().err

    plain = printed()
    assert "\033" not in plain
    for variable in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    coloured = printed()
    assert "\033[1mplan\033[0m\n" in coloured
    assert "  \033[36mstrategy\033[0m    single" in coloured
    assert re.sub("\033.*?m", "", coloured) == plain
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert printed() == plain
