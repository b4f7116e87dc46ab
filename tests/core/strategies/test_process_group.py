"""What strategies on a process group share."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
import torch
from torch import nn

from stratagem import ConfigError, DeferringStrategy, ProcessGroupStrategy, Runtime
from stratagem.strategies.process_group import ranks_along


def test_the_deadline_is_given_once_in_either_form():
    assert ProcessGroupStrategy(timeout_s=3).timeout == timedelta(seconds=3)
    assert ProcessGroupStrategy(timeout=timedelta(minutes=2)).timeout == timedelta(minutes=2)
    with pytest.raises(ConfigError, match="say the same thing"):
        ProcessGroupStrategy(timeout=timedelta(minutes=2), timeout_s=3)


def test_an_unknown_start_method_is_refused():
    with pytest.raises(
        ConfigError, match="start_method='thread' must be one of forkserver, spawn, popen, fork"
    ):
        ProcessGroupStrategy(start_method="thread")


def test_a_construction_is_taken_once_and_stays_in_its_process():
    strategy, module = DeferringStrategy(), nn.Module()
    assert strategy.pop_deferred_init(module) is None
    torch.manual_seed(3)
    expected = nn.Linear(2, 2)
    torch.manual_seed(3)
    with strategy.module_init_context():
        module.layer = nn.Linear(2, 2)
        module.table = torch.arange(3)
    assert pickle.loads(pickle.dumps(strategy)).pop_deferred_init(nn.Module()) is None
    construction = strategy.pop_deferred_init(module)
    assert torch.equal(construction.materialize([module.layer.weight])[0], expected.weight)
    assert module.table.tolist() == [0, 1, 2]
    assert strategy.pop_deferred_init(module) is None


def test_threads_construct_under_one_strategy_object():
    strategy, modules = DeferringStrategy(), [nn.Module(), nn.Module()]
    settings, meet = dict(vars(strategy)), Barrier(2)
    orthogonal = nn.init.orthogonal_

    def rank(module):
        with strategy.module_init_context():
            module.layer = nn.Linear(2, 2)
            nn.init.orthogonal_(module.layer.weight)
            meet.wait()
        return strategy.pop_deferred_init(module)

    with ThreadPoolExecutor(2) as pool:
        constructions = list(pool.map(rank, modules))
    for module, construction, other in zip(modules, constructions, constructions[::-1]):
        assert construction.knows(module.layer.weight)
        assert not other.knows(module.layer.weight)
    assert vars(strategy) == settings
    assert nn.init.orthogonal_ is orthogonal


def test_a_module_that_was_made_elsewhere_leaves_the_construction_to_its_own():
    strategy, module, whole = DeferringStrategy(), nn.Module(), nn.Linear(2, 2)
    with strategy.module_init_context():
        module.tables = [torch.arange(3)]
    assert strategy.pop_deferred_init(whole) is None
    assert strategy.pop_deferred_init(module) is not None
    assert module.tables[0].tolist() == [0, 1, 2]


def limits(runtime):
    strategy = runtime.session.run.strategy
    groups = [strategy.open_group([[0, 1]]), strategy.open_group([[1]])]
    mesh = strategy.open_mesh((1, 2), ("copies", "parts"), "cpu")
    groups += [mesh.get_group("copies"), mesh.get_group("parts")]
    cpu = torch.device("cpu")
    found = [
        None if each is None else (each.size(), each._get_backend(cpu).options._timeout) for each in groups
    ]
    return runtime.collectives.gather_objects((mesh.mesh.tolist(), found))


def test_groups_and_meshes_have_the_strategys_time_limit():
    strategy = ProcessGroupStrategy(timeout_s=61, start_method="fork")
    runtime = Runtime(strategy=strategy, accelerator="cpu", devices=2)
    (mesh, first), (_, second) = runtime.launch(limits, quiet=True)
    limit = timedelta(seconds=61)
    assert mesh == [[0, 1]]
    assert first == [(2, limit), None, (1, limit), (2, limit)]
    assert second == [(2, limit), (1, limit), (1, limit), (2, limit)]


def test_a_variable_names_the_backend_of_strategies_that_are_given_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRATAGEM_PROCESS_GROUP_BACKEND", "mpi")
    monkeypatch.setenv("PL_TORCH_DISTRIBUTED_BACKEND", "nccl")  # what counts is set
    assert ProcessGroupStrategy().process_group_backend == "mpi"
    assert ProcessGroupStrategy(process_group_backend="gloo").process_group_backend == "gloo"
    monkeypatch.setenv("STRATAGEM_PROCESS_GROUP_BACKEND", "")
    with pytest.raises(
        ConfigError, match="=nccl is now called STRATAGEM_PROCESS_GROUP_BACKEND: set that one"
    ):
        ProcessGroupStrategy()
    monkeypatch.delenv("PL_TORCH_DISTRIBUTED_BACKEND")
    assert ProcessGroupStrategy().process_group_backend is None


def test_ranks_along_dimensions_of_a_mesh():
    assert ranks_along((2, 2, 2), [2]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks_along((2, 2, 2), [0]) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ranks_along((2, 2, 2), [0, 1]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert ranks_along((2, 1, 2), []) == [[0], [1], [2], [3]]


def places(runtime):
    strategy = runtime.session.run.strategy
    mesh = strategy.open_mesh((1, 2, 1), ("slow", "copies", "parts"), "cpu")
    groups = [mesh.get_group(name).size() for name in ("slow", "copies", "parts")]
    return runtime.collectives.gather_objects((mesh.mesh_dim_names, mesh.get_coordinate(), groups))


def test_a_mesh_has_as_many_dimensions_as_names():
    runtime = Runtime(
        strategy=ProcessGroupStrategy(timeout_s=61, start_method="fork"), accelerator="cpu", devices=2
    )
    names = ("slow", "copies", "parts")
    seen = [(found, list(at), groups) for found, at, groups in runtime.launch(places, quiet=True)]
    assert seen == [(names, [0, 0, 0], [1, 2, 1]), (names, [0, 1, 0], [1, 2, 1])]
