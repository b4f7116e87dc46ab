"""The extension keeps the kit's contract in each of its presets: among it, that its backend changes no bit."""

from __future__ import annotations

import pytest
from stratagem_compile.conformance import SUBJECTS
from stratagem_testing import ExtensionContract, ExtensionSubject


class TestPresets(ExtensionContract):
    @pytest.fixture(params=["compile_blocks", "compile_model"])
    def subject(self, request: pytest.FixtureRequest) -> ExtensionSubject:
        return SUBJECTS[request.param]
