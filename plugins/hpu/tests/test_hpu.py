"""Gaudi processors: what can be known without Intel's library, and runs on stand-ins that compute on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stratagem_hpu import HPUAccelerator, HPUParallelStrategy, SingleHPUStrategy, library

import stratagem
from stratagem.errors import BrokenPluginError
from stratagem.sdk.runs import assemble

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def habana(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for Intel's library is importable, and the machine has processors."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setattr(library, "DEVICE_FILES", (str(STAND_IN),))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "habana_frameworks"]:
        del sys.modules[name]


def test_without_the_library_all_are_refused_with_what_to_install() -> None:
    hint = "habana_frameworks.*isn't installed: run Intel's `habanalabs-installer.sh install --type pytorch`"
    with pytest.raises(stratagem.DeviceError, match=f"accelerator 'hpu' is not available here: {hint}"):
        assemble(stratagem.RunConfig(accelerator="hpu"))
    for name in ("hpu_single", "hpu_parallel"):
        with pytest.raises(BrokenPluginError, match=f"strategy '{name}' of stratagem-hpu 0.1.0 needs {hint}"):
            assemble(stratagem.RunConfig(strategy=name))
    assert HPUAccelerator().device_count() == 0


@pytest.mark.usefixtures("habana")
def test_a_machine_without_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "DEVICE_FILES", ("/dev/none",))
    assert (
        HPUAccelerator().availability().reason.endswith("this machine has no Gaudi processor: no /dev/none")
    )


@pytest.mark.usefixtures("habana")
def test_devices_and_what_auto_takes() -> None:
    assert HPUAccelerator().availability().reason == "2 Gaudi processors"
    assert HPUAccelerator().memory(HPUAccelerator().device(0)) == {"allocated_bytes": 7}
    names = [
        assemble(stratagem.RunConfig(accelerator="hpu", devices=count)).strategy_name
        for count in (1, 2, "auto")
    ]
    assert names == ["hpu_single", "hpu_parallel", "hpu_parallel"]
    assert assemble(stratagem.RunConfig()).accelerator.name == "hpu"


@pytest.mark.usefixtures("habana")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"devices": [1]}, "names devices of hpu, which has none to choose among"),
        ({"devices": 3}, "asks for 3 devices of hpu, but this machine has 2"),
        ({"precision": "16-mixed"}, "no loss scaling for float16; use bf16-mixed"),
        ({"precision": "64-true"}, "no float64"),
        ({"strategy": "ddp", "devices": 2}, "works with hpu_single, hpu_parallel, not with ddp"),
        ({"strategy": "hpu_parallel", "devices": 2, "strategy_options": {"start_method": "fork"}}, "'fork'"),
    ],
)
def test_refusals(config: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.UsageError, match=re.escape(message)):
        assemble(stratagem.RunConfig(accelerator="hpu", **config))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SingleHPUStrategy("cuda:1"), "device='cuda:1' can't be chosen: a process has one Gaudi"),
        (
            lambda: HPUParallelStrategy(ddp_comm_hook="fp16"),
            "no setting 'ddp_comm_hook': gradients are averaged",
        ),
        (lambda: HPUParallelStrategy(bucket_size=3), "no setting 'bucket_size'"),
    ],
)
def test_arguments_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("devices", "lines"),
    [
        (1, ["rank 0: HPUPrepared, 28 marks, ID=None", "rank 0: HPUPrepared, 64 marks, ID=None"]),
        (
            2,
            [
                "rank 0: HPUDDPPrepared, 14 marks, ID=0",
                "rank 1: HPUDDPPrepared, 14 marks, ID=1",
                "rank 0: ManualHPUDDPPrepared, 18 marks, ID=0",
                "rank 1: ManualHPUDDPPrepared, 18 marks, ID=1",
            ],
        ),
    ],
)
def test_the_numbers_are_those_without_the_device_and_work_is_sent_off(
    devices: int, lines: list[str]
) -> None:
    """Of two epochs: after each of 8 backwards (4 on 2 ranks), each step and each batch of a validation."""
    paths = os.pathsep.join([str(STAND_IN), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, STAND_IN / "train.py", str(devices)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert set(lines) <= set(printed)
    assert [line for line in printed if "differs" in line] == [
        "Regression differs by 0.0",
        "Manual differs by 0.0",
    ]
