"""What the core itself and its accelerator for the CPU offer conforms."""

from __future__ import annotations

import pytest
from background_saves import in_background
from stratagem_testing import (
    AcceleratorContract,
    AcceleratorSubject,
    CheckpointContract,
    CheckpointSubject,
    EnvironmentContract,
    EnvironmentSubject,
    ExtensionContract,
    ExtensionSubject,
    LauncherContract,
    LauncherSubject,
    LoggerContract,
    LoggerSubject,
    PlaceContract,
    PlaceSubject,
    PrecisionContract,
    PrecisionSubject,
)
from wrong_other_parts import Lines, read_lines

PLACE = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29501",
}


class TestCpu(AcceleratorContract):
    @pytest.fixture
    def subject(self) -> AcceleratorSubject:
        return AcceleratorSubject("cpu")


class TestPrecisions(PrecisionContract):
    @pytest.fixture(params=["32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true"])
    def subject(self, request: pytest.FixtureRequest) -> PrecisionSubject:
        return PrecisionSubject(request.param)


class TestDirectory(CheckpointContract):
    @pytest.fixture
    def subject(self) -> CheckpointSubject:
        return CheckpointSubject("directory")


@pytest.mark.long
class TestDirectoryInBackground(CheckpointContract):
    @pytest.fixture
    def subject(self) -> CheckpointSubject:
        return CheckpointSubject(in_background)


class TestEnv(EnvironmentContract):
    @pytest.fixture
    def subject(self) -> EnvironmentSubject:
        place = {
            "global_rank": 3,
            "local_rank": 1,
            "world_size": 4,
            "main_address": "host",
            "main_port": 29501,
        }
        return EnvironmentSubject("env", examples=((PLACE, place),))


class TestTorchElastic(EnvironmentContract):
    @pytest.fixture
    def subject(self) -> EnvironmentSubject:
        variables = {**PLACE, "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "1"}
        place = {"global_rank": 3, "node_rank": 1, "local_world_size": 2, "world_size": 4}
        return EnvironmentSubject("torchelastic", examples=((variables, place),))


class TestElasticLauncher(LauncherContract):
    @pytest.fixture
    def subject(self) -> LauncherSubject:
        return LauncherSubject("elastic")


class TestRecord(ExtensionContract):
    @pytest.fixture
    def subject(self) -> ExtensionSubject:
        return ExtensionSubject("record")


class TestLines(LoggerContract):
    @pytest.fixture
    def subject(self) -> LoggerSubject:
        return LoggerSubject(Lines, read=read_lines)


class TestCsv(LoggerContract):
    @pytest.fixture
    def subject(self) -> LoggerSubject:
        return LoggerSubject("csv")


@pytest.mark.long
class TestLocal(PlaceContract):
    @pytest.fixture
    def subject(self) -> PlaceSubject:
        return PlaceSubject("local")
