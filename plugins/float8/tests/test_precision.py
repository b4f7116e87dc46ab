"""Names, refusals before a launch, and what is logged."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from stratagem_float8 import Float8
from stratagem_float8.names import MEANINGS
from torch import nn

from stratagem import ConfigError, Runtime
from stratagem.errors import PrecisionError, UsageError

CPU = torch.device("cpu")


def test_an_object_and_a_name_mean_the_same() -> None:
    for name, (recipe, emulate) in MEANINGS.items():
        given = Float8(recipe, emulate=emulate)
        assert (given.name, Float8(name).name) == (name, name)
        assert pickle.loads(pickle.dumps(given)).name == name
    with pytest.raises(
        ConfigError, match="recipe='blockwise' must be one of tensorwise, rowwise, rowwise_with_gw_hp"
    ):
        Float8("blockwise")


def test_an_object_is_made_for_the_device_of_a_process() -> None:
    given = Float8(emulate=True)
    assert given.autocast() is None
    placed = given.for_device(CPU)
    context = placed.autocast()
    assert context is not None
    with context:
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype is torch.bfloat16
    assert given.device is None


@pytest.mark.parametrize("precision", ["float8", "float8-rowwise", Float8(), Float8("rowwise")])
def test_the_cpu_is_refused_before_the_launch(precision: Any) -> None:
    with pytest.raises(
        PrecisionError, match=r"'float8.*' is not available on cpu: it only works on cuda; cpu has"
    ):
        Runtime("ddp", accelerator="cpu", devices=2, precision=precision).launch(print)


@pytest.mark.parametrize(
    ("capability", "hip", "why"),
    [
        ((8, 6), None, r"8\.9 \(Ada\) or newer, and cuda:0 has 8\.6"),
        ((9, 4), "6.2", "AMD GPUs haven't been tried"),
    ],
)
def test_a_process_refuses_a_gpu_without_float8(
    capability: tuple[int, int], hip: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    gpu = torch.device("cuda", 0)
    with pytest.raises(PrecisionError, match=why):
        Float8().for_device(gpu)
    with pytest.raises(PrecisionError, match="or 'float8-rowwise-emulated' to compare numbers"):
        Float8("float8-rowwise", gpu)
    assert Float8(emulate=True).for_device(gpu).device == gpu


def test_a_process_takes_a_gpu_with_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert Float8("float8", torch.device("cuda", 0)).device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("model_parallel", {}), ("tensor=2", {}), ("dp", {}), ("bagua_qadam", {})],
)
def test_strategies_that_cannot_are_refused_before_the_launch(strategy: str, options: dict[str, Any]) -> None:
    for precision in ("float8-emulated", Float8("rowwise", emulate=True)):
        with pytest.raises(
            UsageError, match=r"precision 'float8-.*emulated' doesn't work with this strategy; it has"
        ) as no:
            Runtime(strategy, accelerator="cpu", devices=2, precision=precision, **options).launch(print)
        assert no.value.exit_code == 2


def test_a_model_without_such_a_layer_is_refused() -> None:
    net = nn.Sequential(nn.Linear(16, 3), nn.Linear(3, 16))
    message = (
        r"computes nothing of Sequential in float8: 2 of sizes that 16 doesn't divide; use 'bf16-mixed'$"
    )
    with pytest.raises(PrecisionError, match=message):
        Float8(emulate=True).convert_layers(net)


def test_what_computes_in_float8_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratagem")
    net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 3))
    Float8(emulate=True).convert_layers(net)()
    assert caplog.messages == [
        "float8-emulated: 1 of 2 linear layers compute in float8 (1 of sizes that 16 doesn't divide)"
    ]


def test_a_module_that_is_converted_twice_is_given_back_once_both_are_undone() -> None:
    net = nn.Sequential(nn.Linear(16, 16))
    first = Float8(emulate=True).convert_layers(net)
    second = Float8(emulate=True).convert_layers(net)
    second()
    assert type(net[0]) is not nn.Linear
    first()
    assert type(net[0]) is nn.Linear


def test_without_torchao_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['torchao'] = None\n"
        "from stratagem import Runtime\n"
        "Runtime('single', accelerator='cpu', precision='float8-emulated').launch(print)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode != 0
    assert 'needs torchao, which isn\'t installed: pip install "stratagem-float8[engine]"' in ended.stderr


def test_importing_torchao_prints_nothing() -> None:
    program = "import stratagem_float8.precision"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
