"""The release workflow builds every distribution of the repository, with no token and few rights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
JOBS = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def names() -> dict[str, str]:
    """Folder of each distribution → its name."""
    projects = [
        ROOT / "pyproject.toml",
        *(p for p in ROOT.glob("*/pyproject.toml")),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
    found = {}
    for project in projects:
        name = re.search(r'^name = "(.+)"$', project.read_text(), re.MULTILINE)
        found[project.parent.relative_to(ROOT).as_posix()] = name[1]
    return found


def test_every_distribution_is_built() -> None:
    built = {row["project"]: row["name"] for row in JOBS["build"]["strategy"]["matrix"]["include"]}
    assert built == names()
    assert len(built) == len(JOBS["build"]["strategy"]["matrix"]["include"])


def test_nothing_is_published_that_was_not_checked_built_and_attested() -> None:
    assert set(JOBS["publish"]["needs"]) == {"check", "build"}
    used = [step.get("uses", "").partition("@")[0] for step in JOBS["build"]["steps"]]
    assert used.index("actions/attest-build-provenance") < used.index("actions/upload-artifact")
    assert JOBS["build"]["permissions"]["attestations"] == "write"


def test_publishing_is_trusted_and_needs_no_secret() -> None:
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}
    assert JOBS["publish"]["environment"] == "pypi"
    assert WORKFLOW["permissions"] == {}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()
    assert all("password" not in step.get("with", {}) for step in STEPS)


@pytest.mark.parametrize("action", sorted({step["uses"] for step in STEPS if "uses" in step}))
def test_actions_are_pinned_to_a_major_version(action) -> None:
    assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action)
