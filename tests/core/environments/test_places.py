"""What each environment reads from its launcher's variables."""

from __future__ import annotations

import pytest

from stratagem.environments.base import Environment
from stratagem.environments.env import Env
from stratagem.environments.rank_info import DERIVED_PORTS, derived_port
from stratagem.environments.single import SingleProcess
from stratagem.environments.torchelastic import TorchElastic
from stratagem.errors import UsageError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "2",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "40123",
}


def place(environment: Environment) -> tuple[int, int, int, int, int, str, int]:
    return (
        environment.global_rank,
        environment.local_rank,
        environment.node_rank,
        environment.world_size,
        environment.local_world_size,
        environment.main_address,
        environment.main_port,
    )


def test_single_process() -> None:
    assert place(SingleProcess({"RANK": "nonsense"})) == (0, 0, 0, 1, 1, "127.0.0.1", 0)


def test_torchrun() -> None:
    environment = TorchElastic(TORCHRUN)
    assert place(environment) == (5, 1, 2, 6, 2, "host0", 40123)
    assert (environment.store_is_served, environment.attempt) == (True, 2)
    bare = {k: v for k, v in TORCHRUN.items() if k not in ("TORCHELASTIC_RESTART_COUNT",)}
    plain = TorchElastic(bare | {"TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert (plain.store_is_served, plain.attempt) == (False, 0)


def test_an_environment_is_a_snapshot() -> None:
    environ = dict(TORCHRUN)
    environment = TorchElastic(environ)
    environ.clear()
    assert (environment.global_rank, environment.attempt) == (5, 2)


def test_derived_ports_differ_between_neighbours_and_stay_in_range() -> None:
    ports = [derived_port(job, step) for job in range(1000, 1100) for step in range(16)]
    assert len(set(ports)) == len(ports)
    assert all(port in DERIVED_PORTS for port in (*ports, derived_port(987654321)))


def test_env_on_one_node_needs_no_local_rank() -> None:
    local = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert place(Env(local)) == (1, 1, 0, 2, 2, "localhost", 29500)


def test_env_on_several_nodes_needs_the_local_size() -> None:
    far = {"RANK": "5", "WORLD_SIZE": "6", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert place(Env(far | {"LOCAL_WORLD_SIZE": "2"})) == (5, 1, 2, 6, 2, "10.0.0.1", 29500)
    assert place(Env(far | {"LOCAL_SIZE": "3", "LOCAL_RANK": "2"}))[1:5] == (2, 1, 6, 3)
    with pytest.raises(UsageError, match="set LOCAL_WORLD_SIZE and LOCAL_RANK"):
        Env(far)


def test_a_missing_or_wrong_variable_is_named() -> None:
    optional = {name for name in TORCHRUN if name.startswith("TORCHELASTIC")}
    for name in set(TORCHRUN) - optional:
        with pytest.raises(UsageError, match=f"^{name} isn't set, which .* sets"):
            TorchElastic({k: v for k, v in TORCHRUN.items() if k != name})
        if name == "MASTER_ADDR":
            continue
        with pytest.raises(UsageError, match=f"^{name} is 'x7'"):
            TorchElastic(TORCHRUN | {name: "x7"})
        if "RANK" in name and name != "GROUP_RANK":
            with pytest.raises(UsageError, match=f"^{name} is '-1'"):
                TorchElastic(TORCHRUN | {name: "-1"})
            with pytest.raises(UsageError, match=r"gave this process .*rank 99 among"):
                TorchElastic(TORCHRUN | {name: "99"})
