"""How stratagem-cuda is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stratagem_cuda


def test_the_entry_point_declares_the_accelerator() -> None:
    (found,) = entry_points(group="stratagem", name="cuda")
    (component,) = found.load().stratagem_components()
    assert (component.kind, component.name) == ("accelerator", "cuda")
    assert component.load() is stratagem_cuda.CudaAccelerator
    assert component.load().name == "cuda"


def test_declaring_imports_no_torch() -> None:
    program = "import sys, stratagem_cuda.plugin as p; p.stratagem_components(); exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_cuda.__all__ == ["CudaAccelerator"]
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_cuda.missing
