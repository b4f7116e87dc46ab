"""Which environment is detected; plugins/clusters has those of launchers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from stratagem.environments import detect_environment
from stratagem.environments.single import SingleProcess
from stratagem.errors import UsageError


class Started(SingleProcess):
    name = "started"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        return "STARTED is set" if "STARTED" in environ else None


def test_the_first_that_recognises_its_variables_is_detected() -> None:
    classes = (Started, SingleProcess)
    assert detect_environment(classes, {"STARTED": "1"}) == (Started, "STARTED is set")
    assert detect_environment(classes, {}) == (SingleProcess, "no launcher has set its variables")
    assert detect_environment(classes[::-1], {"STARTED": "1"})[0] is SingleProcess


def test_no_fitting_environment_is_an_error() -> None:
    with pytest.raises(UsageError, match="environments started, started fits; name one"):
        detect_environment((Started, Started), {})


def test_importing_the_environments_imports_no_torch() -> None:
    program = "import sys, stratagem.environments.single; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
