"""How stratagem-mps is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stratagem_mps


def test_the_entry_point_declares_the_accelerator() -> None:
    (found,) = entry_points(group="stratagem", name="mps")
    (component,) = found.load().stratagem_components()
    assert (component.kind, component.name) == ("accelerator", "mps")
    assert component.load() is stratagem_mps.MpsAccelerator
    assert component.load().name == "mps"


def test_declaring_imports_no_torch() -> None:
    program = "import sys, stratagem_mps.plugin as p; p.stratagem_components(); exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_mps.__all__ == ["MpsAccelerator"]
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_mps.missing
