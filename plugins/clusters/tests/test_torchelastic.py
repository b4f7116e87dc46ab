"""What a worker of torchrun reads from its variables."""

from __future__ import annotations

import pytest
from stratagem_clusters import TorchElastic

from stratagem.collectives.stores import store_variables
from stratagem.environments.base import Environment
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


def test_it_recognises_its_run_by_its_id_and_knows_its_file() -> None:
    alone = TorchElastic(TORCHRUN)
    assert (alone.run_secret, alone.store_file) == ("none", None)
    variables = store_variables("/folder", "none", 2)
    assert TorchElastic(TORCHRUN | variables).store_file == next(iter(variables.values()))
    assert TorchElastic(TORCHRUN | variables | {"TORCHELASTIC_RUN_ID": "inner"}).store_file is None


@pytest.mark.parametrize(
    ("value", "is_served"),
    [("True", True), ("true", True), ("1", True), ("False", False), ("0", False), ("", False)],
)
def test_the_agent_may_serve_the_store(value: str, is_served: bool) -> None:
    assert TorchElastic(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": value}).store_is_served is is_served
    unsaid = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    assert TorchElastic(unsaid).store_is_served is False


def test_it_is_recognised_by_a_rank_and_a_run_together() -> None:
    assert TorchElastic.detect(TORCHRUN) == "torchrun has set TORCHELASTIC_RUN_ID and RANK"
    for name in ("RANK", "TORCHELASTIC_RUN_ID"):
        assert TorchElastic.detect({k: v for k, v in TORCHRUN.items() if k != name}) is None
    assert (TorchElastic.name, TorchElastic.creates_processes) == ("torchelastic", True)
