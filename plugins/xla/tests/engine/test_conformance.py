"""The strategies and the accelerator do what all do, on XLA's CPU devices; the rest by `stratagem conformance`."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_xla.conformance import ACCELERATOR, FSDP, SINGLE, XLA

from stratagem.testing import AcceleratorContract, StrategyContract, StrategySubject

pytestmark = pytest.mark.timeout(360)  # a check compiles up to a hundred programs

ON_FOUR = ("parity", "uneven_samples", "tied_weights", "evaluation_once", "save_and_load")
"""What cutting into more parts than there are samples, or than a dim is long, could break."""


class TestXla(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return XLA


class TestXlaOnFour(StrategyContract):
    world_sizes = (4,)
    checks = tuple(check for check in StrategyContract.checks if check.name in ON_FOUR)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return XLA


class TestSingle(StrategyContract):
    world_sizes = (1,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SINGLE


class TestFsdp(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return FSDP


class TestFsdpOnFour(TestXlaOnFour):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return FSDP


class TestAccelerator(AcceleratorContract):
    @pytest.fixture
    def subject(self) -> Any:
        return ACCELERATOR
