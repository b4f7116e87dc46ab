"""IPUs by the names of poptorch: what can be known without it, and runs on a stand-in that computes on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_ipu import IPUAccelerator, IPUStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import BrokenPluginError
from stratagem.sdk.runs import assemble

STAND_IN = str(Path(__file__).parent / "stand_in")


@pytest.fixture
def poptorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, importable as poptorch."""
    monkeypatch.syspath_prepend(STAND_IN)
    import poptorch

    poptorch.CALLS.clear()
    yield poptorch
    del sys.modules["poptorch"]


class Regression(stratagem.Module):
    """Counts what the loop sees: the losses of its batches, and its parameters at validations."""

    def __init__(self, make_optimizer: Any = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.make_optimizer = make_optimizer or (
            lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=0.01)
        )
        self.losses: list[float] = []
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))
        self.log("train_loss", outputs["loss"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(self.net[0].weight.detach().clone())

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        }


def loader(rows: int = 32, batch_size: int = 8) -> DataLoader:
    torch.manual_seed(0)
    x = torch.randn(rows, 4)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size)


def fit(
    module: Regression, tmp_path: Path, strategy: Any, epochs: int = 2, data: Any = None, **options: Any
) -> stratagem.Trainer:
    ckpt_path = options.pop("ckpt_path", None)
    trainer = stratagem.Trainer(
        strategy=strategy,
        max_epochs=epochs,
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
        **options,
    )
    trainer.fit(module, data or loader(), loader(), ckpt_path=ckpt_path)
    return trainer


# Without poptorch -----------------------------------------------------------------------------------


def test_without_poptorch_both_are_refused_with_what_to_install() -> None:
    hint = "poptorch.*isn't installed: `pip install poptorch"
    with pytest.raises(stratagem.DeviceError, match=f"accelerator 'ipu' is not available here: {hint}"):
        assemble(stratagem.RunConfig(accelerator="ipu"))
    with pytest.raises(
        BrokenPluginError, match=f"strategy 'ipu_strategy' of stratagem-ipu 0.1.0 needs {hint}"
    ):
        assemble(stratagem.RunConfig(strategy="ipu_strategy"))
    assert IPUAccelerator().device_count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_iterations": 4}, "device_iterations=4 is not available: a batch is one optimizer step"),
        ({"training_opts": object()}, "training_opts is not available"),
        ({"inference_opts": object()}, "inference_opts is not available"),
        ({"parallel_devices": [torch.device("cpu")]}, "poptorch chooses the IPUs: say devices="),
        ({"gradient_accumulation": 0}, "gradient_accumulation=0 must be 1 or more"),
        ({"autoreport_dir": "a"}, "goes with autoreport=True"),
    ],
)
def test_arguments_of_the_reference_that_are_not_available(options: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        IPUStrategy(**options)


# On the stand-in -------------------------------------------------------------------------------------


def test_devices(poptorch: Any) -> None:
    assert IPUAccelerator().availability().reason == "4 IPUs"
    run = assemble(stratagem.RunConfig(accelerator="ipu", devices=4))
    assert (run.strategy_name, run.plan.world_size, len(run.devices)) == ("ipu_strategy", 1, 4)
    assert len(assemble(stratagem.RunConfig(accelerator="ipu")).devices) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_the_numbers_are_those_of_one_process(devices: int, poptorch: Any, tmp_path: Path) -> None:
    module, other = Regression(), Regression()
    fit(module, tmp_path / "a", IPUStrategy(gradient_accumulation=2), accelerator="ipu", devices=devices)
    fit(other, tmp_path / "b", "single", accelerator="cpu")
    assert module.losses == pytest.approx(other.losses, abs=1e-6)
    for ours, theirs in zip([*module.parameters(), *module.seen], [*other.parameters(), *other.seen]):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    compiled = [call for call in poptorch.CALLS if call.startswith("compile")]
    assert len(compiled) == 1
    assert f"'replicationFactor': {devices}" in compiled[0]
    assert "'gradientAccumulation': 2" in compiled[0]
    assert poptorch.CALLS.count("setOptimizer") == 2, "once when it is made, and once per change of the rate"
    assert poptorch.CALLS[-1] == "destroy"


@pytest.mark.usefixtures("poptorch")
def test_a_resumed_fit_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = Regression()
    fit(whole, tmp_path / "a", "ipu_strategy", accelerator="ipu")
    first = fit(Regression(), tmp_path / "b", "ipu_strategy", 1, accelerator="ipu")
    saved = str(tmp_path / "saved")
    first.save_checkpoint(saved)
    resumed = Regression()
    fit(resumed, tmp_path / "c", "ipu_strategy", accelerator="ipu", ckpt_path=saved)
    for one, other in zip(whole.parameters(), resumed.parameters()):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=0)


class Logs(Regression):
    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("inner", loss)
        return loss


class ReadsIndex(Regression):
    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        return super().training_step(batch, batch_idx) * (batch_idx % 2)


class ReturnsMore(Regression):
    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "more": 1}


class Normed(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.net.append(nn.BatchNorm1d(1))


class Compiled(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].compile(backend="eager")


class Ended(Regression):
    def training_step_end(self, outputs: list[Any]) -> Any:
        return outputs[0]


class Partly(Regression):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[0].parameters(), 0.1)


@pytest.mark.usefixtures("poptorch")
@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: Regression(torch.optim.Adam), {}, "Adam is not available on ipu_strategy"),
        (
            lambda: Regression(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
            {},
            "SGD with momentum=0.9 is not available",
        ),
        (lambda: Regression(lambda p: torch.optim.SGD(p, 0.1, maximize=True)), {}, "negate the loss"),
        (Partly, {}, "'net.2.weight' requires a gradient, but the optimizer doesn't have it"),
        (Logs, {}, "training_step logs 'inner'.*log in on_train_batch_end"),
        (ReadsIndex, {}, "training_step reads batch_idx"),
        (ReturnsMore, {}, "returned more than its loss"),
        (Ended, {}, "defines training_step_end"),
        (Compiled, {}, "'net.0' is compiled by torch, and poptorch compiles the whole step itself"),
        (Normed, {"devices": 2}, "'net.3' is a BatchNorm1d, whose statistics"),
        (Regression, {"accumulate_grad_batches": 2}, "accumulate_grad_batches=2 is not available"),
        (Regression, {"gradient_clip_val": 1.0}, "can't do this: clipping gradients by norm"),
        (Regression, {"precision": "bf16-mixed"}, "use 32-true"),
        (Regression, {"devices": 2, "data": loader(33)}, "has 1 samples, which 2 equal parts"),
        (Regression, {"data": loader(36)}, "compiled for .* make batches of one shape"),
    ],
)
def test_what_one_program_cant_do_is_refused(
    make: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(stratagem.UsageError, match=message):
        fit(make(), tmp_path, "ipu_strategy", 1, **{"accelerator": "ipu", **options})
