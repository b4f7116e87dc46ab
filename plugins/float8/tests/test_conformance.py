"""Each recipe, emulated on the CPU, does what every precision does."""

from __future__ import annotations

import pytest
from stratagem_float8.conformance import SUBJECTS
from stratagem_float8.names import MEANINGS
from stratagem_testing import PrecisionContract, PrecisionSubject


class TestRecipes(PrecisionContract):
    @pytest.fixture(params=[name for name, (_, emulate) in MEANINGS.items() if emulate])
    def subject(self, request: pytest.FixtureRequest) -> PrecisionSubject:
        return SUBJECTS[request.param]
