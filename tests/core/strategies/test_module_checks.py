"""Modules that torch can't train as they are, refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stratagem import CombinationError, ConfigError, Runtime
from stratagem.strategies.module_checks import needed_features, refuse_untrainable

CPU = torch.device("cpu")


def test_batch_norm_over_ranks_needs_a_gpu() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    with pytest.raises(ConfigError, match=r"^'1', a SyncBatchNorm, can't be trained on a CPU"):
        refuse_untrainable(net, CPU, 1)
    refuse_untrainable(net.eval(), CPU, 2)


def test_lazy_layers_are_initialized_before_several_processes() -> None:
    net = nn.Sequential(nn.LazyLinear(3))
    refuse_untrainable(net, CPU, 1)
    with pytest.raises(ConfigError, match=r"^'0', a LazyLinear, has 'weight' uninitialized"):
        refuse_untrainable(net, CPU, 2)
    net(torch.ones(1, 2))
    refuse_untrainable(net, CPU, 2)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_that_only_one_rank_renormalizes_are_refused(kind: type[nn.Module]) -> None:
    net = nn.ModuleDict({"words": kind(3, 2, max_norm=1.5)})
    refuse_untrainable(net, CPU, 1)
    said = r"^'words', a Embedding(Bag)?, has max_norm=1\.5: .*renorm_\(2, 0, 1\.5\)"
    with pytest.raises(ConfigError, match=said):
        refuse_untrainable(net, CPU, 2)


def test_sparse_gradients_are_a_feature() -> None:
    assert needed_features(nn.EmbeddingBag(3, 2, sparse=True)) == ["sparse_gradients"]
    assert needed_features(nn.Embedding(3, 2)) == []
    frozen = nn.Embedding(3, 2, sparse=True).requires_grad_(False)
    assert needed_features(frozen) == []


def test_a_strategy_without_it_is_refused_before_anything_is_set_up() -> None:
    def main(runtime: Runtime) -> None:
        net = nn.Embedding(3, 2, sparse=True)
        runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))

    with pytest.raises(CombinationError, match=r"sparse gradients.*installed strategies that can: .*ddp"):
        Runtime(strategy="fsdp", accelerator="cpu", devices=1).launch(main, quiet=True)


def test_sparse_gradients_need_a_backend_that_adds_them_up() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 2, sparse=True))
    refuse_untrainable(net, CPU, 1, "gloo")
    with pytest.raises(
        ConfigError, match=r"^'1', a Embedding, has sparse gradients, which nccl can't add up"
    ):
        refuse_untrainable(net, CPU, 1, "nccl")
    refuse_untrainable(net.requires_grad_(False), CPU, 1, "nccl")


def test_a_run_refuses_sparse_gradients_by_its_own_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem.strategies.module_checks.WITHOUT_SPARSE", ("gloo",))  # stands for nccl

    def loop(runtime: Runtime) -> None:
        net = nn.Embedding(4, 2, sparse=True)
        runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))

    with pytest.raises(ConfigError, match="has sparse gradients, which gloo can't add up"):
        Runtime("ddp", "cpu", 1).launch(loop, quiet=True)
    Runtime("single", "cpu", 1).launch(loop, quiet=True)
