"""It does what every strategy does where its processes are MPI's, and Horovod goes through MPI."""

from __future__ import annotations

import pytest
from mpi_workers import MPISubject, needs_mpi
from stratagem_horovod.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject

OWN_LAUNCH = ("start_methods", "rank_raises", "rank_killed")
"""Checks that start the processes themselves."""


class TestMPI(StrategyContract):
    checks = tuple(check for check in StrategyContract.checks if check.name not in OWN_LAUNCH)
    world_sizes = (2, 4)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        needs_mpi()
        return MPISubject(**vars(SUBJECT))
