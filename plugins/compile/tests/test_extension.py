"""Compiled blocks and models train as they do otherwise, and equal blocks are compiled once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_activations import Activations
from stratagem_compile import Compile
from stratagem_compile.torch_private import graphs
from stratagem_model_parallel import ModelParallelStrategy
from stratagem_sharding.torch_private import is_compiled
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stratagem import ConfigError, Module, Prepared, Runtime, SetupRequest, Trainer, hookimpl

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute:UserWarning"
)  # torch's own, as it compiles


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Forget what earlier tests compiled in this process: torch keeps it with the code of a forward."""
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = value + self.down(torch.relu(self.up(self.norm(value))))
        return result


class Net(nn.Module):
    """Six equal blocks, whose inputs all require gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value)
        for block in self.blocks:
            value = block(value)
        result: torch.Tensor = self.last(value)
        return result


class Fitted(Module):
    """The same for a Trainer, whose strategies may split a Sequential into stages."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = net or nn.Sequential(nn.Linear(8, 8), *(Block() for _ in range(6)), nn.Linear(8, 3))

    def training_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> torch.Tensor:
        value, target = batch
        return nn.functional.mse_loss(self.net(value), target)

    def validation_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> torch.Tensor:
        result: torch.Tensor = self.net(batch[0])
        return result

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.01)


def compiled(net: nn.Module) -> int:
    """Return how many modules are compiled."""
    return sum(is_compiled(each) for each in net.modules())


def extension(what: Any, backend: str = "aot_eager", **options: Any) -> Compile:
    return Compile(what, backend=backend, **options)


SIZES = (4, 4, 4, 4, 2, 4, 3)
"""Of the batches: the fifth is the first of another size."""


def train(runtime: Runtime, accumulate: int = 1) -> tuple[list[float], list[int]]:
    """Return the loss of each batch, and how many graphs were compiled up to then."""
    torch.manual_seed(1)
    net = Net()
    module, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters(), 0.01), accumulate=accumulate)
    torch.manual_seed(10 + runtime.rank)
    before, losses, counts = graphs(), [], []
    for size in SIZES:
        with runtime.accumulate() if accumulate > 1 else torch.enable_grad():
            loss = nn.functional.mse_loss(module(torch.randn(size, 8)), torch.randn(size, 3))
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        counts.append(graphs() - before)
    return losses, counts


def own_loop(
    strategy: Any, devices: int, plugins: Sequence[Any], *args: Any
) -> tuple[list[float], list[int]]:
    runtime = Runtime(strategy, accelerator="cpu", devices=devices, plugins=plugins)
    result: tuple[list[float], list[int]] = runtime.launch(train, *args, quiet=True)
    return result


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(
        TensorDataset(torch.randn(26, 8, generator=generator), torch.randn(26, 3, generator=generator)), 4
    )


def trainer(strategy: Any, devices: int, plugins: Sequence[Any], folder: Path, **options: Any) -> Trainer:
    return Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        plugins=list(plugins),
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder,
        seed=7,
        **{"max_epochs": 2, "enable_checkpointing": False, **options},
    )


def fit(strategy: Any, devices: int, plugins: Sequence[Any], folder: Path, **options: Any) -> dict[str, Any]:
    module = Fitted()
    trainer(strategy, devices, plugins, folder, **options).fit(module, data(), data())
    assert compiled(module) == 0
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def expect_close(weights: dict[str, Any], others: dict[str, Any], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(weights, others, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_equal_blocks_are_compiled_once(strategy: str, devices: int) -> None:
    plain, _ = own_loop(strategy, devices, [])
    losses, counts = own_loop(strategy, devices, [extension("blocks")])
    assert losses == pytest.approx(plain, abs=1e-5)
    # One for all six blocks; with the first batch of another size one more, which serves all further sizes.
    assert counts == [1, 1, 1, 1, 2, 2, 2]


def test_accumulated_steps_compile_nothing_more() -> None:
    plain, _ = own_loop("ddp", 2, [], 2)
    losses, counts = own_loop("ddp", 2, [extension("blocks")], 2)
    assert losses == pytest.approx(plain, abs=1e-5)
    assert counts == [1, 1, 1, 1, 2, 2, 2]


def test_fixed_sizes_compile_for_each_of_them() -> None:
    _, counts = own_loop("ddp", 2, [extension("blocks", dynamic=False)])
    assert counts == [1, 1, 1, 1, 2, 2, 3]


def test_all_sizes_at_once() -> None:
    _, counts = own_loop("ddp", 2, [extension("blocks", dynamic=True)])
    assert counts == [1] * len(SIZES)


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_a_whole_model_of_an_own_loop(strategy: str, devices: int) -> None:
    plain, _ = own_loop(strategy, devices, [])
    losses, counts = own_loop(strategy, devices, [extension("model")])
    assert losses == pytest.approx(plain, abs=1e-5)
    assert counts[3] == counts[0]


@pytest.mark.long
def test_inductor_trains_as_no_compiler_does() -> None:
    plain, _ = own_loop("ddp", 2, [])
    losses, counts = own_loop("ddp", 2, [extension("blocks", backend="inductor")])
    assert losses == pytest.approx(plain, abs=1e-5)
    assert counts == [1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("what", ["blocks", "model"])
@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        ("single", 1),
        ("fsdp", 2),
        *(
            pytest.param(name, devices, marks=pytest.mark.long)
            for name, devices in (
                ("ddp", 2),
                ("ddp_sharded", 2),
                ("ddp_fully_sharded", 2),
                ("dp", 2),
                ("diloco", 2),
                ("bagua", 2),
                ("fairscale_sharded", 2),
                ("fairscale_pipe", 2),
                ("pipeline", 2),
                ("deepspeed_stage_2", 2),
                ("deepspeed_stage_3", 2),
                ("shard=2", 2),
                ("shard=2+replicate=2", 4),
            )
        ),
    ],
)
def test_fits_have_the_same_weights(strategy: str, devices: int, what: Any, tmp_path: Path) -> None:
    if (strategy, what) == ("fairscale_pipe", "model"):
        with pytest.raises(ConfigError, match=r"^'net' has its own forward, and FairScale runs the layers"):
            fit(strategy, devices, [extension(what)], tmp_path)
        return
    expect_close(fit(strategy, devices, [extension(what)], tmp_path), fit(strategy, devices, [], tmp_path))


class Refusing:
    """Refuses each module, as a strategy may."""

    @hookimpl(wrapper=True, trylast=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        raise ConfigError("not this one")
        yield


@pytest.mark.parametrize(("plugins", "within"), [([], 6), ([Refusing()], 0)])
def test_a_run_gives_the_calls_back(plugins: list[Any], within: int) -> None:
    net = Net()

    def set_up(runtime: Runtime) -> int:
        try:
            runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        except ConfigError:
            assert plugins
        return compiled(net)

    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks"), *plugins])
    assert (runtime.launch(set_up, quiet=True), compiled(net)) == (within, 0)


def test_what_the_user_compiled_stays() -> None:
    net = Net()
    net.blocks[0].compile(backend="eager")

    def set_up(runtime: Runtime) -> list[bool]:
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        return ["forward" in vars(each) for each in net.blocks]

    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks")])
    assert runtime.launch(set_up, quiet=True) == [False] + [True] * 5
    assert is_compiled(net.blocks[0])


def test_copies_compute_with_their_own_parameters() -> None:
    net = Net()

    def set_up(runtime: Runtime) -> tuple[torch.Tensor, ...]:
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        twins = (copy.deepcopy(net), pickle.loads(pickle.dumps(net)))
        for twin in twins:
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.zero_()
        return tuple(each(torch.ones(1, 8)) for each in (net, *twins))

    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks")])
    values = runtime.launch(set_up, quiet=True)
    assert [bool(value.any()) for value in values] == [True, False, False]


class TorchsOwn(nn.Module):
    """Blocks of torch's own classes, which `nn.Module.compile` leaves uncompiled."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(3)
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return value


def test_torchs_own_layers_are_compiled() -> None:
    def set_up(runtime: Runtime) -> int:
        net = TorchsOwn()
        module, _ = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        before = graphs()
        module(torch.randn(2, 3, 8, requires_grad=True))
        return graphs() - before

    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks")])
    assert runtime.launch(set_up, quiet=True) == 1


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("is_first", [True, False])
def test_recomputed_blocks(mode: Any, is_first: bool) -> None:
    both = [extension("blocks"), Activations(mode)]
    plain, _ = own_loop("single", 1, [])
    losses, counts = own_loop("single", 1, both if is_first else both[::-1])
    assert losses == pytest.approx(plain, abs=1e-5)
    assert counts[:4] == [1] * 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precisions(precision: str, tmp_path: Path) -> None:
    plain = fit("single", 1, [], tmp_path, precision=precision)
    expect_close(fit("single", 1, [extension("blocks")], tmp_path, precision=precision), plain, 1e-3)


def test_checkpoints_have_the_same_names_and_go_on_without_it(tmp_path: Path) -> None:
    whole = fit("single", 1, [], tmp_path / "whole")

    class Saved(Fitted):
        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 0:
                self.trainer.save_checkpoint(tmp_path / "saved")

    trainer("single", 1, [extension("blocks")], tmp_path / "a").fit(Saved(), data(), data())
    for plugins in ([], [extension("model")]):
        module = Fitted()
        trainer("single", 1, plugins, tmp_path / "b").fit(
            module, data(), data(), ckpt_path=str(tmp_path / "saved")
        )
        expect_close(dict(module.state_dict()), whole)


@pytest.mark.parametrize("what", ["blocks", "model"])
def test_predictions(what: Any, tmp_path: Path) -> None:
    module = Fitted()
    plain = trainer("single", 1, [], tmp_path).predict(module, data())
    before = graphs()
    found = trainer("single", 1, [extension(what)], tmp_path).predict(module, data())
    assert graphs() > before
    torch.testing.assert_close(found, plain)
    assert compiled(module) == 0


def split(runtime: Runtime) -> None:
    net = Net()
    runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))


@pytest.mark.parametrize("what", ["blocks", "model"])
def test_layers_that_are_split_are_refused(what: Any) -> None:
    strategy = ModelParallelStrategy(parallelize={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"})
    runtime = Runtime(strategy, accelerator="cpu", devices=2, plugins=[extension(what)])
    with pytest.raises(ConfigError, match=r"is compiled, and torch trains compiled blocks wrongly"):
        runtime.launch(split, quiet=True)


def cursed(graph: object, inputs: object) -> object:
    raise ArithmeticError("no code for this")


def test_an_error_of_the_backend_names_the_block() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^'blocks.0', a Block, can't be compiled by backend='cursed': ArithmeticError: no code for this; name",
    ):
        own_loop("single", 1, [Compile(backend=cursed)])


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.layer(value)
        torch._dynamo.graph_break()
        result: torch.Tensor = self.layer(value)
        return result


def break_graphs(runtime: Runtime) -> list[int]:
    net = nn.Sequential(Breaking(), Breaking())
    module, _ = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    return list(module(torch.zeros(2, 8)).shape)


def test_breaks_of_graphs_are_torchs_unless_fullgraph() -> None:
    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks")])
    assert runtime.launch(break_graphs, quiet=True) == [2, 8]
    torch.compiler.reset()
    runtime = Runtime("single", accelerator="cpu", plugins=[extension("blocks", fullgraph=True)])
    with pytest.raises(ConfigError, match=r"^'0', a Breaking, can't be compiled by backend='aot_eager': "):
        runtime.launch(break_graphs, quiet=True)


def test_the_time_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    own_loop("ddp_spawn", 2, [extension("blocks")])  # whose workers print to this test's standard error
    lines = [line.split() for line in capfd.readouterr().err.splitlines() if "graph" in line]
    assert [line[0] for line in lines] == ["compiled", "again"]  # by one rank alone
    assert " ".join(lines[0]).startswith("compiled 6 blocks of 1 kind by aot_eager: 1 graph in ")
    assert float(lines[0][-2]) > 0


def test_a_machine_without_a_compiler_is_refused_before_the_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    launched: list[object] = []

    class Launched:
        @hookimpl(wrapper=True, trylast=True)
        def launch(self, request: object) -> Generator[None, Any, Any]:
            launched.append(request)
            return (yield)

    runtime = Runtime("single", accelerator="cpu", plugins=[Launched(), "compile_blocks"])
    with pytest.raises(
        ConfigError, match=r"^backend=\"inductor\" generates C\+\+ code, and there is no compiler"
    ):
        runtime.launch(split, quiet=True)
    assert not launched
    Runtime("single", accelerator="cpu", plugins=[Launched(), extension("blocks")]).launch(split, quiet=True)
    assert len(launched) == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Compile("all"), r"^what='all' must be one of blocks, model$"),  # type: ignore[arg-type]  # invalid
        (lambda: Compile("model", [Block]), r"^modules= names blocks"),
        (lambda: Compile(backend="no_such"), r"^backend='no_such' must be a function, or one of .*inductor"),
    ],
)
def test_wrong_options_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_a_model_without_blocks_is_refused() -> None:
    def set_up(runtime: Runtime) -> None:
        net = nn.Linear(2, 2)
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))

    runtime = Runtime("single", accelerator="cpu", plugins=["compile_blocks"])
    with pytest.raises(
        ConfigError, match=r"^Linear has no ModuleList, and no Sequential of composed modules"
    ):
        runtime.launch(set_up, quiet=True)
