"""What horovodrun tells its processes."""

from __future__ import annotations

import pytest
from stratagem_horovod import Horovod
from stratagem_testing import EnvironmentContract, EnvironmentSubject

from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.environments import derived_port
from stratagem.sdk.selection import choose_environment

ONE_NODE = {
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "4",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "41234",
}
TWO_NODES = {**ONE_NODE, "HOROVOD_RANK": "3", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "1"}
PLACE = {"global_rank": 1, "local_rank": 1, "node_rank": 0, "world_size": 4, "local_world_size": 4}
MET = {"main_address": "127.0.0.1", "main_port": derived_port(41234)}


class TestHorovod(EnvironmentContract):
    @pytest.fixture
    def subject(self) -> EnvironmentSubject:
        second = {"global_rank": 3, "node_rank": 1, "local_world_size": 2, "main_address": "10.0.0.1"}
        return EnvironmentSubject("horovod", examples=((ONE_NODE, PLACE | MET), (TWO_NODES, second)))


def test_an_exported_address_wins() -> None:
    environment = Horovod({**TWO_NODES, "MASTER_ADDR": "node1", "MASTER_PORT": "6000"})
    assert (environment.main_address, environment.main_port) == ("node1", 6000)


def test_it_is_nearer_than_the_job_that_it_is_in() -> None:
    job = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert choose_environment(load_catalogue(), "auto", {**job, **ONE_NODE}).name == "horovod"


def test_elastic_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out --min-np"):
        Horovod({**ONE_NODE, "HOROVOD_ELASTIC": "1"})
