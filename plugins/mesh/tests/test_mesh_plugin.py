"""How stratagem-mesh is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stratagem_mesh


def test_the_entry_point_declares_the_strategy() -> None:
    (found,) = entry_points(group="stratagem", name="mesh")
    (component,) = found.load().stratagem_components()
    assert component.composes_axes
    assert component.load() is stratagem_mesh.ComposedStrategy


def test_declaring_imports_no_torch() -> None:
    program = "import sys, stratagem_mesh.plugin as p; p.stratagem_components(); exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_mesh.__all__ == ["ComposedPrepared", "ComposedStrategy", "apply_axes", "compose"]
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_mesh.missing
