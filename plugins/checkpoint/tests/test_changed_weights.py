"""Weights of a checkpoint in a module that has changed since, under strategies that hold whole weights and shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_checkpoint import load_weights
from stratagem_single import SingleDeviceStrategy
from torch import nn

import stratagem
from stratagem import CheckpointReader, InitialWeights, Prepared, SetupRequest, WeightsReport, hookimpl
from stratagem.errors import CheckpointError


class Net(nn.Module):
    def __init__(self, body: str = "body", classes: int = 2, fill: float = 0.0) -> None:
        super().__init__()
        self.add_module(body, nn.Linear(4, 4))
        self.head = nn.Linear(4, classes)
        for parameter in self.parameters():
            nn.init.constant_(parameter, fill)


def _save(runtime: stratagem.Runtime, path: str) -> None:
    runtime.setup(Net(fill=3.0))
    runtime.save(path)


def _load(runtime: stratagem.Runtime, changes: dict[str, Any], weights: InitialWeights) -> Any:
    runtime.setup(Net(**changes), lambda net: torch.optim.SGD(net.parameters(), lr=0.1))
    report = load_weights(runtime, weights)
    prepared = runtime._prepared[0]
    found = {}
    for key, tensor in prepared.model_tensors().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found[key.removeprefix("model/")] = sorted(set(whole.flatten().tolist()))
    return report, found


def run(strategy: str, devices: int, *task: Any) -> Any:
    return stratagem.Runtime(strategy, accelerator="cpu", devices=devices).launch(*task, quiet=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = str(tmp_path_factory.mktemp("changed") / "ckpt")
    run("single", 1, _save, where)
    return where


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_renamed_and_partial(strategy: str, devices: int, path: str) -> None:
    weights = InitialWeights(path, strict=False, rename={"body.": "trunk."}, skip=["head."])
    report, found = run(strategy, devices, _load, {"body": "trunk", "fill": 1.0, "classes": 5}, weights)
    assert report == WeightsReport(
        path, ("trunk.weight", "trunk.bias"), (), (), {}, ("head.weight", "head.bias")
    )
    assert found == {"trunk.weight": [3.0], "trunk.bias": [3.0], "head.weight": [1.0], "head.bias": [1.0]}


class HoldsCopies(Prepared):
    """Reads weights into tensors of its own, and fills the module from these, as engines do."""

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        current = self.model_tensors()
        copies = {key: torch.zeros_like(tensor) for key, tensor in current.items()}
        reader.read(copies)
        with torch.no_grad():
            for key, tensor in current.items():
                tensor.copy_(copies[key])


class HoldingCopies(SingleDeviceStrategy):
    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        return HoldsCopies(request)


def test_what_is_not_in_the_checkpoint_keeps_its_values_where_copies_are_read(path: str) -> None:
    weights = InitialWeights(path, strict=False, skip=["head."])
    runtime = stratagem.Runtime(HoldingCopies(), accelerator="cpu")
    _, found = runtime.launch(_load, {"fill": 1.0, "classes": 5}, weights, quiet=True)
    assert found == {"body.weight": [3.0], "body.bias": [3.0], "head.weight": [1.0], "head.bias": [1.0]}


def test_missing_and_unexpected_are_reported(path: str) -> None:
    weights = InitialWeights(path, strict=False)
    report, found = run("single", 1, _load, {"body": "trunk", "fill": 1.0}, weights)
    assert report.missing == ("trunk.weight", "trunk.bias")
    assert report.unexpected == ("body.weight", "body.bias")
    assert found["trunk.bias"] == [1.0]
    assert found["head.bias"] == [3.0]


@pytest.mark.parametrize(
    ("changes", "how", "said"),
    [
        (
            {"body": "trunk"},
            {},
            "missing keys: trunk.weight, trunk.bias, unexpected keys: body.weight, body.bias; map",
        ),
        (
            {"classes": 5},
            {"strict": False},
            r"head.weight is \(2, 4\) there and \(5, 4\) here.*skip=\['head.weight'",
        ),
        (
            {},
            {"rename": {"backbone.": "body."}},
            "no tensor in .* begins with 'backbone.', which is to be renamed",
        ),
        ({"classes": 1}, {"strict": False}, r"head.weight is \(2, 4\) there and \(1, 4\) here"),
        ({}, {"rename": {"body.": "head."}}, "would both be 'head.weight'"),
        ({}, {"rename": {"": "x."}, "strict": False}, "have no tensor in common: it has x.body"),
    ],
)
def test_what_does_not_fit_is_refused(
    path: str, changes: dict[str, Any], how: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        run("single", 1, _load, changes, InitialWeights(path, **how))
