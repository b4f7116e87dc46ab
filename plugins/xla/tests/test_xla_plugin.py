"""What can be known and refused without torch_xla: everything here runs in any environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_xla import TpuAccelerator, XlaAccelerator, XLAFSDPStrategy, XLAStrategy, library
from stratagem_xla.loader import Loaded, Padded, fill, takes_mask
from stratagem_xla.placing import moved
from stratagem_xla.sharded import units
from stratagem_xla.sharding import Layout
from torch import nn

import stratagem
from stratagem.config import RunConfig
from stratagem.installed.catalogue import load_catalogue
from stratagem.resolve.run import assemble

ROOT = Path(__file__).parents[3]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch_xla 2.9 and torch 2.9 are installed: what is asked before importing it."""
    monkeypatch.setattr(library, "problem", lambda: None)
    monkeypatch.setattr("stratagem.plugin.component.Component.missing", lambda component: [])
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    monkeypatch.delenv("CPU_NUM_DEVICES", raising=False)


def test_names() -> None:
    catalogue = load_catalogue()
    targets = {
        name: catalogue.find("strategy", name).name
        for name in ("xla", "tpu", "tpu_spawn", "single_xla", "single_tpu", "xla_fsdp")
    }
    assert targets == {
        "xla": "xla",
        "tpu": "xla",
        "tpu_spawn": "xla",
        "single_xla": "single_xla",
        "single_tpu": "single_xla",
        "xla_fsdp": "xla_fsdp",
    }
    assert catalogue.find("strategy", "tpu_spawn").options == {"spmd": False, "start_method": "spawn"}


def test_without_torch_xla_it_is_listed_and_refused_with_exit_code_2(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['torch_xla'] = None; from stratagem_cli.main import main; sys.exit(main())"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", hidden, *words]
        return subprocess.run(program, capture_output=True, text=True, env=environ, cwd=tmp_path, check=False)

    listed = run("strategies", "--json")
    assert "\"torch_xla isn't installed; pip install 'stratagem[xla]'\"" in listed.stdout
    target = f"{ROOT}/examples/digits.py:Digits"
    for words in (("--strategy", "xla"), ("--accelerator", "xla"), ("--strategy", "tpu", "--devices", "2")):
        refused = run("fit", target, *words)
        assert refused.returncode == 2, refused.stderr
        assert "torch_xla" in refused.stderr
        assert "pip install 'stratagem[xla]'" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ours", "torchs", "message"),
    [
        ("2.8.1", "2.8.0", "torch_xla 2.8.1 is older than 2.9"),
        (
            "2.9.0",
            "2.13.0+cpu",
            "torch_xla 2.9.0 only works with torch 2.9, and torch 2.13.0+cpu is installed",
        ),
        ("2.9.0", "2.9.1", None),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, ours: str, torchs: str, message: str | None) -> None:
    versions = {"torch_xla": ours, "torch": torchs}
    monkeypatch.setattr(library, "find_spec", lambda name: object())
    monkeypatch.setattr(library.importlib_metadata, "version", versions.__getitem__)
    problem = library.problem()
    assert problem is None if message is None else (problem or "").startswith(message)


def test_chips_are_counted_on_the_pci_bus(tmp_path: Path) -> None:
    assert library.tpu_devices(tmp_path) == 0
    for slot, (vendor, device) in enumerate(
        [
            ("0x1ae0", "0x0063"),
            ("0x1ae0", "0x0063"),
            ("0x1ae0", "0x0027"),
            ("0x1ae0", "0xffff"),
            ("0x8086", "0x0063"),
        ]
    ):
        (tmp_path / str(slot)).mkdir()
        (tmp_path / str(slot) / "vendor").write_text(vendor + "\n")
        (tmp_path / str(slot) / "device").write_text(device + "\n")
    assert library.tpu_devices(tmp_path) == 4


@pytest.mark.usefixtures("engine")
class TestDevices:
    def test_the_cpu_has_as_many_as_are_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        xla = XlaAccelerator()
        assert xla.default_devices() == 1
        assert xla.check_index(3) is None
        assert "64 at most" in (xla.check_index(64) or "")
        assert str(xla.device(3)) == "xla:3"
        monkeypatch.setenv("CPU_NUM_DEVICES", "2")
        assert (xla.device_count(), xla.default_devices()) == (2, 2)
        assert xla.check_index(2) == "this machine has 2"

    @pytest.mark.parametrize(
        ("named", "message"),
        [
            ("TPU", "PJRT_DEVICE=TPU names a device that this machine hasn't"),
            (
                "CUDA",
                "PJRT_DEVICE=CUDA names a device for which torch_xla has no plugin here: allowed are CPU, TPU",
            ),
        ],
    )
    def test_a_device_that_is_not_there(
        self, monkeypatch: pytest.MonkeyPatch, named: str, message: str
    ) -> None:
        monkeypatch.setenv("PJRT_DEVICE", named)
        with pytest.raises(stratagem.UsageError, match=message):
            assemble(RunConfig(strategy="xla", accelerator="xla"))
        with pytest.raises(stratagem.UsageError, match=message):
            assemble(RunConfig(strategy="xla"))

    def test_tpus_where_there_are_some(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not TpuAccelerator().availability().ok
        monkeypatch.setattr(library, "tpu_devices", lambda: 4)
        monkeypatch.setenv("TPU_LIBRARY_PATH", "/somewhere")
        assert TpuAccelerator().availability().reason == "4 TPU devices by PJRT"
        run = assemble(RunConfig())
        assert (run.accelerator.name, len(run.devices)) == ("tpu", 4)
        assert isinstance(run.strategy, XLAStrategy)
        assert run.plan.world_size == 1
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
        assert "PJRT_DEVICE=CPU" in TpuAccelerator().availability().reason

    def test_auto_takes_what_is_made_for_it(self) -> None:
        names = [
            type(assemble(RunConfig(accelerator="xla", devices=count)).strategy).__name__ for count in (1, 2)
        ]
        assert names == ["SingleDeviceXLAStrategy", "XLAStrategy"]

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"strategy": "xla", "accelerator": "cpu"}, "works on tpu, xla, not on cpu"),
            (
                {"strategy": "single", "accelerator": "xla"},
                "works with xla, single_xla, xla_fsdp, not with single",
            ),
            ({"strategy": "single_xla", "accelerator": "xla", "devices": 2}, "one device per process"),
            (
                {"strategy": "xla", "accelerator": "xla", "precision": "16-mixed"},
                "bfloat16 instead of float16",
            ),
            ({"strategy": "tpu_spawn", "accelerator": "xla", "devices": 2}, "PJRT's CPU only has one"),
            ({"strategy": "xla", "accelerator": "xla", "num_nodes": 2}, "runs in one process"),
        ],
    )
    def test_refusals(self, config: dict[str, Any], message: str) -> None:
        with pytest.raises(stratagem.UsageError, match=message):
            assemble(RunConfig(**config))

    def test_processes_where_there_are_tpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "tpu_devices", lambda: 4)
        monkeypatch.setenv("TPU_LIBRARY_PATH", "/somewhere")
        run = assemble(RunConfig(strategy="tpu_spawn"))
        assert run.plan.world_size == 4
        assert type(run.launcher()).__name__ == "XlaLauncher"
        with pytest.raises(stratagem.CombinationError, match="more than one node"):
            assemble(RunConfig(strategy="tpu_spawn", num_nodes=2))


def test_start_methods() -> None:
    with pytest.raises(stratagem.ConfigError, match="must be one of spawn, fork"):
        XLAStrategy(start_method="popen")


# What does the work, without a device of XLA's -----------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.register_buffer("one", torch.ones(1))
        self.register_buffer("same", self.one)


def test_tied_tensors_stay_tied_on_another_device() -> None:
    module = moved(Tied(), torch.device("meta"))
    assert module.head.weight is module.embedding.weight
    assert module.head.weight.device.type == "meta"
    assert module.same is module.one


def test_units() -> None:
    module = Tied()
    assert units(module, None) == list(module.blocks)
    assert units(module, ["Linear"]) == [module.head, module.blocks[0]]
    assert units(module, nn.Embedding) == [module.embedding]

    def larger(module: nn.Module, recurse: bool, unwrapped_params: int) -> bool:
        return recurse or unwrapped_params >= 12

    assert units(module, larger) == [module.embedding, module.head, module.blocks[0]]
    for policy, message in (
        ("Conv2d", "names 'Conv2d'"),
        ([3], "has 3"),
        (lambda wrong: True, "can't be asked"),
    ):
        with pytest.raises(stratagem.ConfigError, match=message):
            units(module, policy)
    assert XLAFSDPStrategy(auto_wrap_policy="Linear").axis == "fsdp"


def test_filling_up_repeats_samples_from_the_first() -> None:
    batch = {"x": torch.arange(3), "scale": torch.tensor(2.0), "names": ["a"], "pairs": (torch.ones(3, 2),)}
    filled = fill(batch, 3, 5)
    assert filled["x"].tolist() == [0, 1, 2, 0, 1]
    assert filled["pairs"][0].shape == (5, 2)
    assert filled["names"] == ["a"]
    assert float(filled["scale"]) == 2.0


def test_only_a_step_that_takes_the_mask_gets_one() -> None:
    class Takes(stratagem.Module):
        def training_step(self, batch: Any, batch_idx: int, sample_mask: Any) -> None: ...

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    assert takes_mask(Takes()) == {"training_step"}


def test_a_loader_fills_up_what_is_smaller() -> None:
    padded: list[Padded] = []
    marks: list[int] = []
    loader = [torch.arange(4), torch.arange(4), torch.arange(2)]
    loaded = Loaded(loader, torch.device("cpu"), Layout(1, "data"), lambda: marks.append(1), padded.append)
    assert [len(batch) for batch in loaded] == [4, 4, 2]
    assert len(marks) == len(loaded) == 3
    last = padded[-1]
    assert last.batch.tolist() == [0, 1, 0, 1]
    assert last.mask.tolist() == [True, True, False, False]
    assert [each.mask.all().item() for each in padded] == [True, True, False]
