"""What the distribution declares, and that declaring it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import stratagem_model_parallel
from stratagem_model_parallel import plugin
from stratagem_model_parallel.mesh import mesh_shape


def test_declares_its_strategies() -> None:
    found = {component.name: component.load() for component in plugin.stratagem_components()}
    assert found.pop("tensor") is stratagem_model_parallel.TensorAxis
    assert found.pop("context") is stratagem_model_parallel.ContextAxis
    assert found == {
        "model_parallel": stratagem_model_parallel.ModelParallelStrategy,
        "context_parallel": stratagem_model_parallel.ContextParallelStrategy,
    }


def test_declaring_imports_no_torch() -> None:
    importing = "import sys, stratagem_model_parallel.plugin as p; p.stratagem_components()"
    program = f"{importing}; exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_has_only_its_public_names() -> None:
    assert stratagem_model_parallel.__all__ == [
        "BlockPlan",
        "ContextAxis",
        "ContextParallelStrategy",
        "ContextPlan",
        "ModelParallelStrategy",
        "TensorAxis",
        "sum_over_sequence",
    ]
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = stratagem_model_parallel.missing


@pytest.mark.parametrize(
    ("data", "tensor", "processes", "per_node", "shape"),
    [
        ("auto", "auto", 8, 4, (2, 4)),
        ("auto", 2, 8, 4, (4, 2)),
        (4, "auto", 8, 4, (4, 2)),
        (1, "auto", 8, 4, (1, 8)),
        (2, 4, 8, 8, (2, 4)),
        ("auto", "auto", 1, 1, (1, 1)),
    ],
)
def test_sizes_that_are_left_open(
    data: object, tensor: object, processes: int, per_node: int, shape: object
) -> None:
    assert mesh_shape(data, tensor, processes, per_node) == shape
