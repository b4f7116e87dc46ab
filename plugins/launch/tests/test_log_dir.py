"""Where workers' output is kept."""

from __future__ import annotations

import pytest
from stratagem_launch import ElasticLauncher

from stratagem import LaunchPlan


def test_a_variable_names_the_folder_where_the_run_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ElasticLauncher(LaunchPlan(2)).plan.log_dir is None
    monkeypatch.setenv("STRATAGEM_LOG_DIR", "there")
    assert ElasticLauncher(LaunchPlan(2)).plan.log_dir == "there"
    assert ElasticLauncher(LaunchPlan(2, log_dir="here")).plan.log_dir == "here"
