"""How stratagem-torch is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stratagem_torch


def test_the_entry_point_declares_the_accelerator() -> None:
    (found,) = entry_points(group="stratagem", name="torch")
    (component,) = found.load().stratagem_components()
    assert (component.kind, component.name) == ("accelerator", "torch")
    assert component.load() is stratagem_torch.TorchAccelerator
    assert component.load().name == "torch"


def test_declaring_imports_no_torch() -> None:
    program = (
        "import sys, stratagem_torch.plugin as p\np.stratagem_components(); exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_torch.__all__ == ["TorchAccelerator"]
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_torch.missing
