"""How stratagem-fsdp is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stratagem_fsdp


def test_the_entry_point_declares_the_strategy_and_its_presets() -> None:
    (found,) = entry_points(group="stratagem", name="fsdp")
    *axes, component = found.load().stratagem_components()
    assert [axis.load() for axis in axes] == [stratagem_fsdp.ShardAxis, stratagem_fsdp.ReplicateAxis]
    assert (component.kind, component.name) == ("strategy", "fsdp")
    assert component.load() is stratagem_fsdp.FSDPStrategy
    assert set(component.presets) == {"fsdp_offload", "fsdp_hybrid"}
    for options in component.presets.values():
        stratagem_fsdp.FSDPStrategy(**options)


def test_declaring_imports_no_torch() -> None:
    program = "import sys, stratagem_fsdp.plugin as p; p.stratagem_components(); exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_fsdp.__all__ == sorted(stratagem_fsdp.__all__)
    # Beside the strategy, what those that build on it use.
    assert "FSDPStrategy" in stratagem_fsdp.__all__
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_fsdp.missing
