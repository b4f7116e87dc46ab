"""What Lightning's callbacks read of `trainer.strategy` is the run's objects, and no state of the strategy."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from stratagem_single import SingleDeviceStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem import StratagemError


class Regression(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Reads(stratagem.Callback):
    """Asks at the end of each training batch, and of a validation."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.optimizers: dict[str, Any] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self._read("fit", trainer, module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._read("validate", trainer, module)

    def _read(self, when: str, trainer: Any, module: Any) -> None:
        strategy, session = trainer.strategy, trainer.runtime.session
        assert strategy.lightning_module is module
        assert strategy.session is session
        given = (strategy.accelerator, strategy.checkpoint_io, strategy.precision_plugin)
        assert given == (None, None, "bf16-mixed"), "what was given, before a run and during it"
        assert strategy.root_device == trainer.device
        assert (strategy.is_global_zero, strategy.num_processes) == (True, 1)
        assert strategy.optimizers == list(trainer.prepared.optimizers)
        self.seen[when] = strategy.model
        self.optimizers[when] = strategy.optimizers


LOADER = DataLoader(TensorDataset(torch.randn(4, 2)), batch_size=2)


def trainer(strategy: Any, reads: Reads, tmp_path: Path) -> stratagem.Trainer:
    return stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        callbacks=[reads],
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
    )


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy, DDPStrategy])
def test_they_answer_while_a_run_is_live(strategy: Any, tmp_path: Path) -> None:
    given, reads, module = strategy(precision_plugin="bf16-mixed"), Reads(), Regression()
    before = pickle.dumps(given)
    fitting = trainer(given, reads, tmp_path)
    fitting.fit(module, LOADER)
    if strategy is SingleDeviceStrategy:
        assert reads.seen["fit"] is module
    else:
        assert isinstance(reads.seen["fit"], DistributedDataParallel)
    assert [type(each) for each in reads.optimizers["fit"]] == [torch.optim.SGD]
    fitting.validate(module, LOADER)
    assert reads.seen["validate"] is module
    assert reads.optimizers["validate"] == []
    assert (given.accelerator, given.checkpoint_io, given.precision_plugin) == (None, None, "bf16-mixed")
    assert pickle.dumps(given) == before, "nothing of a run stays in it"


@pytest.mark.parametrize("name", ["model", "lightning_module", "optimizers"])
def test_outside_of_a_run_they_say_so(name: str) -> None:
    with pytest.raises(
        StratagemError, match=f"DDPStrategy has {name} only during a run that has set up its module"
    ):
        getattr(DDPStrategy(), name)
    with pytest.raises(StratagemError, match="DDPStrategy has a device only during a run"):
        _ = DDPStrategy().root_device
    with pytest.raises(StratagemError, match="DDPStrategy has num_processes only during a run"):
        _ = DDPStrategy().num_processes
    with pytest.raises(StratagemError, match="DDPStrategy has ranks only during a run"):
        _ = DDPStrategy().is_global_zero


def test_of_several_modules_none_is_the_one() -> None:
    strategy = SingleDeviceStrategy()

    def loop(runtime: stratagem.Runtime) -> None:
        runtime.setup(nn.Linear(2, 1))
        assert isinstance(strategy.model, nn.Linear)
        runtime.setup(nn.Linear(2, 1))
        with pytest.raises(StratagemError, match="has model of one module, and this run has set up 2"):
            _ = strategy.model

    stratagem.Runtime(strategy, accelerator="cpu").launch(loop)


def test_one_object_serves_runs_one_after_the_other_and_within_each_other() -> None:
    strategy = SingleDeviceStrategy()
    seen: list[tuple[bool, nn.Module]] = []

    def loop(runtime: stratagem.Runtime, depth: int) -> None:
        module = runtime.setup(nn.Linear(2, 1))
        for _ in range(depth):
            stratagem.Runtime(strategy, accelerator="cpu").launch(loop, depth - 1, quiet=True)
        assert strategy.session is runtime.session
        assert strategy.collectives is runtime.collectives
        seen.append((strategy.model is module, strategy.model))
        for other in (pickle.loads(pickle.dumps(strategy)), copy.deepcopy(strategy)):
            assert vars(other) == {**given, "_sessions": []}

    given = dict(vars(strategy))
    for depth in (2, 0):
        stratagem.Runtime(strategy, accelerator="cpu").launch(loop, depth, quiet=True)
        with pytest.raises(StratagemError, match="SingleDeviceStrategy has a session only during a run"):
            _ = strategy.session
    assert vars(strategy) == given
    assert [is_own for is_own, _ in seen] == [True] * 6
    assert len({id(module) for _, module in seen}) == 6


def test_what_a_strategy_undoes_is_undone_when_the_collectives_are_closed() -> None:
    done: list[str] = []

    class Collectives(stratagem.LocalCollectives):
        def close(self, failed: bool = False) -> None:
            done.append("closed")

    class Undoes(SingleDeviceStrategy):
        def open_collectives(self, request: stratagem.ReduceRequest) -> stratagem.Collectives:
            self.session.closing.callback(done.append, "undone")
            return Collectives(request.device)

        def teardown(self) -> None:
            done.append("torn down")

    class Fails:
        @stratagem.hookimpl(wrapper=True)
        def precision(self, request: Any) -> Any:
            yield
            raise RuntimeError("no precision")

    stratagem.Runtime(Undoes(), accelerator="cpu").launch(lambda runtime: done.append("ran"), quiet=True)
    assert done == ["ran", "closed", "undone", "torn down"]
    del done[:]
    with pytest.raises(RuntimeError, match="no precision"):
        stratagem.Runtime(Undoes(), accelerator="cpu", plugins=[Fails()]).launch(print, quiet=True)
    assert done == ["closed", "undone", "torn down"]
