"""It does what every strategy does where its processes are MPI's, and Horovod goes through MPI."""

from __future__ import annotations

import shutil

import pytest
from mpi_workers import MPISubject
from stratagem_horovod.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject

OWN_LAUNCH = ("start_methods", "rank_raises", "rank_killed")
"""Checks that start the processes themselves."""


class TestMPI(StrategyContract):
    checks = tuple(check for check in StrategyContract.checks if check.name not in OWN_LAUNCH)
    world_sizes = (2, 4)

    @pytest.fixture(scope="class", autouse=True)
    def mpirun(self) -> None:
        import horovod.torch as hvd

        if shutil.which("mpirun") is None:
            pytest.skip("mpirun isn't installed: apt-get install openmpi-bin libopenmpi-dev")
        if not hvd.mpi_built():
            pytest.skip("Horovod was built without MPI: apt-get install libopenmpi-dev, and build it again")

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return MPISubject(**vars(SUBJECT))
