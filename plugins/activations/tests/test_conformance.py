"""The extension keeps the kit's contract in each of its modes: among it, that it changes no bit."""

from __future__ import annotations

import pytest
from stratagem_activations.conformance import SUBJECTS
from stratagem_testing import ExtensionContract, ExtensionSubject


class TestModes(ExtensionContract):
    @pytest.fixture(params=["activations_full", "activations_selective", "activations_offload"])
    def subject(self, request: pytest.FixtureRequest) -> ExtensionSubject:
        return SUBJECTS[request.param]
