"""The strategies and the accelerator do what all do, on XLA's CPU devices."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_testing import AcceleratorContract, StrategyContract, StrategySubject
from stratagem_xla.conformance import ACCELERATOR, FSDP, SINGLE, XLA

pytestmark = pytest.mark.timeout(360)  # a check compiles up to a hundred programs


class TestXla(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return XLA


class TestSingle(StrategyContract):
    world_sizes = (1,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SINGLE


class TestFsdp(StrategyContract):
    world_sizes = (2, 4)  # on one device it is what xla is

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return FSDP


class TestAccelerator(AcceleratorContract):
    @pytest.fixture
    def subject(self) -> Any:
        return ACCELERATOR
