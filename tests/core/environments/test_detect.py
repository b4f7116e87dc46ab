"""Which environment is detected, of those that core has; plugins/clusters has more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from stratagem.environments import Environment, detect_environment
from stratagem.environments.single import SingleProcess
from stratagem.errors import UsageError
from stratagem.plugin.own import stratagem_components

COMPONENTS = [component for component in stratagem_components() if component.kind == "environment"]
CLASSES: list[type[Environment]] = [
    component.load() for component in sorted(COMPONENTS, key=lambda component: -component.priority)
]

ENV = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = ENV | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "r"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, "single", id="nothing"),
        pytest.param(ENV, "env", id="env://"),
        pytest.param(TORCHRUN, "torchelastic", id="torchrun"),
        pytest.param({"TORCHELASTIC_RUN_ID": "r"}, "single", id="left over from torchrun"),
    ],
)
def test_the_nearest_launcher_is_detected(environ: Mapping[str, str], expected: str) -> None:
    cls, why = detect_environment(CLASSES, environ)
    assert (cls.name, bool(why)) == (expected, True)


def test_components_are_what_they_say() -> None:
    assert [cls.name for cls in CLASSES] == [component.name for component in COMPONENTS]
    assert [cls for cls in CLASSES if not cls.creates_processes] == [SingleProcess]


def test_the_reason_where_there_are_no_variables() -> None:
    assert detect_environment(CLASSES, {})[1] == "no launcher has set its variables"


def test_no_fitting_environment_is_an_error() -> None:
    with pytest.raises(UsageError, match="environments torchelastic, env fits; name one"):
        detect_environment(CLASSES[:2], {})


def test_importing_the_environments_imports_no_torch() -> None:
    program = (
        "import sys, stratagem.environments, stratagem.environments.torchelastic, stratagem.environments.env,"
        " stratagem.environments.single; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
