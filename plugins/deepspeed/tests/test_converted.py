"""DeepSpeed's own folders, read and written by `stratagem checkpoint convert` without the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
from stratagem_convert.formats.stored import WeightsReader
from stratagem_deepspeed.conformance import SUBJECT
from stratagem_testing import StrategySubject
from torch import nn

from stratagem import Checkpoint, LocalCollectives


def make() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def subject(stage: int, size: int) -> StrategySubject:
    return replace(SUBJECT, options={**SUBJECT.options, "stage": stage}, world_size=size)


def _train(runtime: Any, folder: str) -> dict[str, torch.Tensor]:
    module, optimizer = runtime.setup(make(), adam)
    for step in range(2):
        loss = module(torch.full((2, 5), step + 1.0)).square().mean()
        runtime.backward(loss)
        optimizer.step()
    prepared = runtime._prepared[0]
    prepared.save_engine(folder)
    tensors = {}
    for key, tensor in prepared.model_tensors().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        tensors[key.removeprefix("model/")] = whole.clone()
    return tensors


def _run(own: Any, folder: str) -> dict[str, torch.Tensor]:
    return own.runtime().launch(_train, folder, quiet=True)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_folder_of_the_engine_is_read_bit_for_bit(stage: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "native")
    trained, _ = subject(stage, 2).run(_run, folder)
    weights = read_weights(folder)
    assert weights.facts["global_step"] == "2"
    assert set(weights.names()) == set(trained)
    with WeightsReader(weights) as reader:
        for name, tensor in trained.items():
            assert torch.equal(reader.whole(name), tensor), name


def _load(own: Any, folder: str) -> dict[str, torch.Tensor]:
    return own.runtime().launch(_engine_alone, folder, quiet=True)


def _engine_alone(runtime: Any, folder: str) -> dict[str, torch.Tensor]:
    import deepspeed

    net = make()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=adam(net), config=config, dist_init_required=False)
    engine.load_checkpoint(folder, load_module_only=True)
    state = {name: tensor.clone() for name, tensor in engine.module.state_dict().items()}
    engine.destroy()
    return state


def test_the_engine_loads_what_is_written(tmp_path: Path) -> None:
    from stratagem_checkpoint import DirectoryCheckpointer

    state = {name: torch.randn_like(tensor) for name, tensor in make().state_dict().items()}
    run, folder = str(tmp_path / "run"), str(tmp_path / "native")
    tensors = {f"model/{name}": tensor for name, tensor in state.items()}
    DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).save(run, Checkpoint(tensors))
    write_weights(read_weights(run), folder, "deepspeed", Writing())
    (loaded,) = subject(1, 1).run(_load, folder)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
