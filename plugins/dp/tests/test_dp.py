"""Batches split over replicas give the numbers of one device; the CPU stands for each device of a node."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Net, plain_training
from small import Closure, Descent, Line, TwoPlayers
from stratagem_dp import DataParallelStrategy, DDP2Strategy
from torch import Tensor
from torch.nn import functional as F

import stratagem
from stratagem.errors import DataError


def trainer(folder: Path, devices: int, strategy: Any = "dp", **how: Any) -> stratagem.Trainer:
    settings = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "limit_val_batches": 0,
        "log_every_n_steps": 1,
        "run_dir": folder / "run",
        "seed": 7,
        **how,
    }
    return stratagem.Trainer(strategy=strategy, devices=devices, **settings)


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0)


class Losses(stratagem.Callback):
    def __init__(self) -> None:
        self.values: list[float] = []
        self.sizes: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.values.append(float(trainer.callback_metrics["loss"]))
        assert self.values[-1] == pytest.approx(outputs["loss"].item(), abs=1e-6)


@pytest.mark.parametrize("strategy", ["dp", "ddp2"])
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_equals_plain_torch(tmp_path: Path, strategy: str, devices: int) -> None:
    module, losses = Net(batch_size=32, scheduled=True), Losses()
    how = {"max_steps": 20, "gradient_clip_val": 0.1, "callbacks": losses}
    trainer(tmp_path, devices, strategy, **how).fit(module)
    parameters, expected = plain_training(20, 32, seed=7, clip=0.1, scheduled=True)
    assert_close(module.net.state_dict(), parameters)
    assert losses.values == pytest.approx(expected, abs=1e-6)


def test_accumulation_equals_one_device(tmp_path: Path) -> None:
    one, two = Net(batch_size=10), Net(batch_size=10)
    how = {"max_steps": 6, "accumulate_grad_batches": 3}
    trainer(tmp_path, 1, "single", **how).fit(one)
    trainer(tmp_path, 4, **how).fit(two)
    assert_close(two.state_dict(), one.state_dict())


class Sizes(Line):
    """Remembers how many samples each call of a step had."""

    sizes: list[int]

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.sizes = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.sizes.append(len(batch[0]))
        return super().training_step(batch, batch_idx)


def test_batches_are_really_split(tmp_path: Path) -> None:
    module = Sizes(batch_size=8, count=21)
    trainer(tmp_path, 3, max_epochs=1).fit(module)
    assert module.sizes == [3, 3, 2, 3, 3, 2, 2, 2, 1]


class Contrast(Descent):
    """A loss over all pairs of a batch, which no part of it could compute."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"predicted": self(batch[0]), "wanted": batch[1]}

    validation_step = test_step = training_step

    def training_step_end(self, outputs: list[Any]) -> Tensor:
        predicted, wanted = (torch.cat([part[key] for part in outputs]) for key in ("predicted", "wanted"))
        loss = F.mse_loss(predicted - predicted.T, wanted - wanted.T)
        self.log("loss", loss)
        return loss

    def validation_step_end(self, outputs: list[Any]) -> None:
        self.log("parts", float(len(outputs)))
        self.log("contrast", self.training_step_end.__func__(Silent(), outputs))

    test_step_end = validation_step_end


class Silent:
    def log(self, *args: Any) -> None: ...


def test_step_ends_see_all_parts_of_a_batch(tmp_path: Path) -> None:
    one, three = Contrast(batch_size=12), Contrast(batch_size=12)
    trainer(tmp_path, 1, "single", max_epochs=2).fit(one)
    trainer(tmp_path, 3, max_epochs=2, limit_val_batches=None).fit(three)
    assert_close(three.state_dict(), one.state_dict())
    expected = trainer(tmp_path, 1, "single").test(one)[0]
    found = trainer(tmp_path, 3).test(one)[0]
    assert (expected.pop("parts"), found.pop("parts")) == (1, 3)
    assert found == pytest.approx(expected, abs=1e-6)


def test_evaluation_and_prediction_equal_one_device(tmp_path: Path) -> None:
    module = Net(batch_size=16)  # the last batch has 5 images
    assert trainer(tmp_path, 3).test(module)[0] == pytest.approx(
        trainer(tmp_path, 1, "single").test(module)[0], abs=1e-6
    )
    found, expected = trainer(tmp_path, 3).predict(module), trainer(tmp_path, 1, "single").predict(module)
    assert [part.shape for part in found] == [part.shape for part in expected]
    torch.testing.assert_close(torch.cat(found), torch.cat(expected))


def test_closures_equal_one_device(tmp_path: Path) -> None:
    one, two = Closure(batch_size=16), Closure(batch_size=16)
    trainer(tmp_path, 1, "single", max_steps=3).fit(one)
    trainer(tmp_path, 2, max_steps=3).fit(two)
    assert_close(two.state_dict(), one.state_dict(), atol=1e-5)


def test_a_raw_loop_gets_whole_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = torch.nn.Linear(4, 2), torch.randn(7, 4)

    def loop(runtime: stratagem.Runtime) -> Tensor:
        module, _ = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        output = module(x)
        runtime.backward(output.square().mean())
        return output

    output = stratagem.Runtime(strategy="dp", accelerator="cpu", devices=3).launch(loop, quiet=True)
    torch.testing.assert_close(output, net(x))
    expected = torch.autograd.grad(net(x).square().mean(), net.weight)[0]
    torch.testing.assert_close(net.weight.grad, expected)


class Hidden(torch.nn.Module):
    """Keeps something for each sample of a batch."""

    hidden: Tensor

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("hidden", torch.zeros(samples, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x + self.hidden)
        return result


def test_a_buffer_with_a_row_for_each_sample_is_refused() -> None:
    def loop(runtime: stratagem.Runtime, samples: int, columns: int) -> None:
        net = Hidden(samples)
        module, _ = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        module(torch.randn(6, columns))

    runtime = stratagem.Runtime(strategy="dp", accelerator="cpu", devices=2)
    with pytest.raises(DataError, match=r"^buffer 'hidden' has 6 rows, .* each device gets 3 of them"):
        runtime.launch(loop, 6, 4, quiet=True)
    with pytest.raises(RuntimeError, match="must match the size"):
        runtime.launch(loop, 5, 4, quiet=True)
    runtime.launch(loop, 3, 4, quiet=True)
    with pytest.raises(RuntimeError, match="must match the size"):
        runtime.launch(loop, 6, 5, quiet=True)


class Where(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.device.type == "meta":
            assert self.layer.weight.device.type == "meta"
            self.trainer.callbacks[0].values.append(0.0)
            return None
        return super().training_step(batch, batch_idx)


class HalfOnMeta(DataParallelStrategy):
    """Has a second device of another kind, for want of a second one of the first: runs refuse such devices."""

    @stratagem.hookimpl
    def setup(self, request: stratagem.SetupRequest) -> stratagem.Prepared:
        return super().setup(replace(request, devices=(torch.device("cpu"), torch.device("meta"))))


def test_a_replica_knows_its_device(tmp_path: Path) -> None:
    losses = Losses()
    losses.on_train_batch_end = lambda *_: None  # type: ignore[method-assign]  # counts nothing
    last = trainer(tmp_path, 2, HalfOnMeta(), max_steps=2, callbacks=losses)
    last.fit(Where())
    assert (last.global_step, losses.values) == (2, [0.0, 0.0])


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("strategy", ["dp", "ddp2"])
def test_16_bits_are_refused(tmp_path: Path, strategy: str, precision: str) -> None:
    with pytest.raises(
        stratagem.PrecisionError, match="doesn't work with this strategy; it has 32-true, 64-true"
    ):
        trainer(tmp_path, 2, strategy, precision=precision).fit(Line())


def test_a_16_bit_precision_object_is_refused_too(tmp_path: Path) -> None:
    from stratagem.precision.mixed import MixedPrecision

    precision = MixedPrecision("bf16-mixed", torch.device("cpu"))
    precision.name = "mine"  # one that is installed is refused by its name
    with pytest.raises(stratagem.PrecisionError, match="choose precision='32-true', or strategy='ddp'"):
        trainer(tmp_path, 2, precision=precision).fit(Line())


def test_what_a_process_with_several_devices_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(stratagem.CombinationError, match="manual optimization"):
        trainer(tmp_path, 2).fit(TwoPlayers())
    with pytest.raises(stratagem.CombinationError, match="runs in one process, but there are 2"):
        trainer(tmp_path, 2, num_nodes=2, rdzv_endpoint="localhost:1").fit(Line())


class Nodes(Net):
    """Says how many parts its first batch had."""

    def training_step_end(self, outputs: list[Any]) -> Tensor:
        assert len(outputs) == 2
        loss = torch.stack(outputs).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)


@pytest.mark.long
def test_ddp2_over_two_nodes_equals_plain_torch(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    run_dir = tmp_path / "run"
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "stratagem", "fit", f"{__file__}:Nodes", "--strategy", "ddp2"),
                *("--accelerator", "cpu", "--devices", "2", "--num-nodes", "2", "--node-rank", str(node)),
                *("--rdzv-endpoint", endpoint, "--max-steps", "10", "--seed", "7", "--run-dir", str(run_dir)),
                *("--set", "model.batch_size=16"),
            ],
            cwd=Path(__file__).parents[3] / "tests" / "support",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    reported = [node.communicate(timeout=240)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(reported)
    assert "2 on 2 nodes" in reported[0]
    module = Nodes()
    trainer(tmp_path, 1, "single").test(module, ckpt_path=run_dir / "checkpoints" / "last")
    assert_close(module.net.state_dict(), plain_training(10, 32, seed=7)[0])


def test_ddp2_takes_the_settings_of_ddp() -> None:
    strategy = DDP2Strategy(timeout_s=200, find_unused_parameters=True, start_method="fork")
    assert strategy.ddp_kwargs == {"find_unused_parameters": True}


class Following(Line):
    """An average of the layer's weight follows it within the step."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.average = torch.nn.Parameter(torch.zeros_like(self.layer.weight), requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            self.average.lerp_(self.layer.weight, 0.5)
            self.layer.weight.clamp_(-0.2, 0.2)
        return super().training_step(batch, batch_idx)


def test_what_a_step_does_to_parameters_in_place_is_done_once(tmp_path: Path) -> None:
    one, two = Following(batch_size=8), Following(batch_size=8)
    trainer(tmp_path, 1, "single", max_steps=4).fit(one)
    trainer(tmp_path, 3, max_steps=4).fit(two)
    assert_close(two.state_dict(), one.state_dict())


class Centre(Following):
    """Its average follows the data, of which a part has its own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            self.average.fill_(float(batch[0].mean()))
        return Line.training_step(self, batch, batch_idx)


class Gathering(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.all_gather(batch[0])
        return super().training_step(batch, batch_idx)


class Freezing(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.layer.bias.requires_grad_(False)
        return super().training_step(batch, batch_idx)


class Compiled(Line):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.layer = torch.compile(self.layer, backend="eager")


class Lazy(Line):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.lazy = torch.nn.LazyLinear(2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Centre, "changes 'average', and differently on each part"),
        (Gathering, "calls all_gather while it has one part of a batch.*compute it in training_step_end"),
        (Freezing, "changes requires_grad of a parameter.*on_train_batch_start"),
        (Compiled, r"call layer.compile\(\) in place of torch.compile"),
        (Lazy, "'lazy', a LazyLinear, is uninitialized"),
    ],
)
def test_what_parts_of_a_batch_would_do_wrong_is_refused(tmp_path: Path, make: Any, sentence: str) -> None:
    with pytest.raises(stratagem.errors.UsageError, match=sentence):
        trainer(tmp_path, 2, max_steps=2).fit(make(batch_size=8))


@pytest.mark.parametrize("strategy", ["dp", "ddp2"])
def test_a_metric_object_is_refused_in_a_sentence(tmp_path: Path, strategy: str) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Measured(Line):
        def __init__(self) -> None:
            super().__init__(batch_size=8)
            self.error = torchmetrics.MeanSquaredError()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.error(self(batch[0]), batch[1])
            self.log("error", self.error, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    with pytest.raises(stratagem.errors.LoggingError, match=r"'error' is logged with a MeanSquaredError"):
        trainer(tmp_path, 2, strategy, max_steps=2).fit(Measured())
