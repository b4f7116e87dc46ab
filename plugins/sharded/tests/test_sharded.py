"""Both strategies give the numbers of one process, in 1, 2 and 4 processes, through any checkpoint."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from parity import Net
from small import Closure, Line, Normed, TwoPlayers
from stratagem_sharded import DDPFullyShardedStrategy, DDPShardedStrategy
from stratagem_sharded.optimizer import ShardedOptimizer
from torch import Tensor
from torch.nn import functional as F

import stratagem

BOTH = ("ddp_sharded", "ddp_fully_sharded")
GLOBAL_BATCH = 32


class Grouped(Net):
    """Two parameter groups, each with a schedule of its own; or two optimizers."""

    def __init__(self, batch_size: int, several: bool = False) -> None:
        super().__init__(batch_size)
        self.several = several

    def configure_optimizers(self) -> Any:
        conv, linear = self.net[0].parameters(), self.net[4].parameters()
        if self.several:
            return [torch.optim.Adam(conv, lr=1e-2), torch.optim.SGD(linear, lr=0.1, momentum=0.9)]
        groups = [{"params": conv, "lr": 1e-2}, {"params": linear, "lr": 3e-3, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: 0.9**s, lambda s: 1 / (1 + s)])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer(folder: Path, devices: int, strategy: Any, **how: Any) -> stratagem.Trainer:
    # Forked workers have imported everything already.
    options = {"start_method": "fork"} if isinstance(strategy, str) and strategy != "single" else {}
    settings = {
        "accelerator": "cpu",
        "strategy_options": {**options, **how.pop("options", {})},
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "limit_val_batches": 0,
        "logger": False,
        "run_dir": folder / "run",
        "seed": 7,
        **how,
    }
    return stratagem.Trainer(strategy=strategy, devices=devices, **settings)


def fit(folder: Path, devices: int, strategy: Any, *, several: bool = False, **how: Any) -> dict[str, Tensor]:
    how = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "max_steps": 6, **how}
    module = Grouped(GLOBAL_BATCH // devices // how["accumulate_grad_batches"], several)
    ckpt_path = how.pop("ckpt_path", None)
    trainer(folder, devices, strategy, **how).fit(module, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}


@cache
def alone(several: bool = False, algorithm: str = "norm") -> dict[str, Tensor]:
    with TemporaryDirectory() as folder:
        return fit(Path(folder), 1, "single", several=several, gradient_clip_algorithm=algorithm)


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("strategy", BOTH)
def test_groups_schedules_clipping_and_accumulation(tmp_path: Path, strategy: str, processes: int) -> None:
    assert_close(fit(tmp_path, processes, strategy), alone())


@pytest.mark.parametrize("strategy", BOTH)
def test_several_optimizers_and_clipping_by_value(tmp_path: Path, strategy: str) -> None:
    how = {"several": True, "gradient_clip_algorithm": "value"}
    assert_close(fit(tmp_path, 2, strategy, **how), alone(several=True, algorithm="value"))


@pytest.mark.parametrize(
    "strategy",
    [
        DDPShardedStrategy(parameters_as_bucket_view=True, gradient_as_bucket_view=True, start_method="fork"),
        DDPFullyShardedStrategy(blocks=["Conv2d", torch.nn.Linear], start_method="fork"),
        DDPFullyShardedStrategy(blocks=[], reduce_each_micro_batch=False, start_method="fork"),
    ],
    ids=["bucket_view", "blocks", "reduce_once"],
)
def test_options_change_no_number(tmp_path: Path, strategy: Any) -> None:
    assert_close(fit(tmp_path, 2, strategy), alone())


class SaveAt(stratagem.Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step and (batch_idx + 1) % 2 == 0:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(
    ("writer", "readers"),
    [
        (("ddp_sharded", 2), [("single", 1), ("ddp_sharded", 4), ("ddp_fully_sharded", 2)]),
        (("ddp_fully_sharded", 4), [("single", 1), ("ddp_sharded", 2)]),
        (("ddp", 2), [("ddp_sharded", 2), ("ddp_fully_sharded", 2)]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_any_strategy_at_any_world_size_goes_on(tmp_path: Path, writer: Any, readers: Any) -> None:
    path = tmp_path / "ckpt"
    fit(tmp_path, writer[1], writer[0], max_steps=3, callbacks=SaveAt(3, path))
    for strategy, processes in readers:
        assert_close(fit(tmp_path, processes, strategy, ckpt_path=path), alone())


class Counting(torch.optim.SGD):
    """Keeps a number that isn't a tensor in each parameter's state, and steps by it."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                count = self.state[parameter].get("count", 0) + 1
                self.state[parameter]["count"] = count
                parameter.data.add_(parameter.grad, alpha=-0.1 / count)


def test_states_that_are_no_tensors_reach_the_checkpoint(tmp_path: Path) -> None:
    def resumed(strategy: str, processes: int) -> dict[str, Tensor]:
        module, path = Counted(batch_size=8 // processes), tmp_path / "ckpt"
        trainer(tmp_path, processes, strategy, max_steps=2, callbacks=SaveAt(2, path)).fit(module)
        last = Counted(batch_size=8 // processes)
        trainer(tmp_path, processes, strategy, max_steps=4).fit(last, ckpt_path=path)
        return last.state_dict()

    assert_close(resumed("ddp_sharded", 2), resumed("single", 1))


class Counted(Line):
    def configure_optimizers(self) -> Any:
        return Counting(self.parameters(), lr=0.1)


def states_per_rank(runtime: stratagem.Runtime, path: str) -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    net, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters()))
    loss = net(torch.randn(4, 8)).square().mean()
    runtime.backward(loss)
    optimizer.step()
    if path:
        runtime.save(path)
        runtime.load(path)
    (prepared,) = runtime._prepared
    whole = getattr(prepared.optimizers[0], "whole", None)
    moments = sum(v.numel() for name, v in prepared.optimizer_tensors().items() if name.endswith("exp_avg"))
    return runtime.collectives.gather_objects((moments, whole is not None and len(whole.state)))


@pytest.mark.parametrize("loaded", [False, True])
def test_each_rank_keeps_only_its_own_states(tmp_path: Path, loaded: bool) -> None:
    runtime = stratagem.Runtime(strategy="ddp_sharded", accelerator="cpu", devices=2)
    kept = runtime.launch(states_per_rank, str(tmp_path / "ckpt") if loaded else "", quiet=True)
    assert kept == [(72, 0), (72, 0)]  # of 144 parameters


def clipped(runtime: stratagem.Runtime) -> Any:
    torch.manual_seed(0)
    net, x = torch.nn.Linear(6, 6), torch.randn(8, 6)
    module, optimizer = runtime.setup(net, torch.optim.Adagrad(net.parameters(), lr=0.1))
    own = x[runtime.rank :: runtime.world_size]
    for _ in range(2):
        runtime.backward(module(own).square().mean())
        norm = runtime.clip(optimizer, max_norm=0.1)
        optimizer.step()
        optimizer.zero_grad()
    whole = getattr(runtime._prepared[0].optimizers[0], "whole", None)
    return type(norm), norm.item(), len(whole.state) if whole is not None else 0


@pytest.mark.parametrize("strategy", BOTH)
def test_clipping_tells_the_whole_norm_and_made_states_are_shared_out(strategy: str) -> None:
    (_, expected, _) = stratagem.Runtime(strategy="single", accelerator="cpu").launch(clipped, quiet=True)
    options = {"start_method": "fork"}
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2, strategy_options=options)
    # Adagrad makes its states when it is made.
    assert runtime.launch(clipped, quiet=True) == (torch.Tensor, pytest.approx(expected, abs=1e-6), 0)


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_precisions(tmp_path: Path, strategy: str, precision: str) -> None:
    # Adam makes much of a rounded gradient near zero: compare along the gradient itself.
    def run(name: str, devices: int) -> dict[str, Tensor]:
        module = Descending(GLOBAL_BATCH // devices)
        trainer(tmp_path, devices, name, max_steps=2, precision=precision).fit(module)
        return module.state_dict()

    assert_close(run(strategy, 2), run("single", 1), 5e-3)


class Descending(Net):
    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net(batch[0]).float(), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("strategy", BOTH)
def test_buffers_frozen_and_unused_parameters(tmp_path: Path, strategy: str) -> None:
    options = {"find_unused_parameters": True} if strategy == "ddp_sharded" else {}
    how = {"max_steps": 3, "limit_val_batches": None}
    module = Normed()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer(tmp_path, 2, strategy, options=options, **how).fit(module)
    after = module.state_dict()
    assert not torch.equal(before["layer.weight"], after["layer.weight"])
    assert torch.equal(before["frozen.weight"], after["frozen.weight"])
    assert torch.equal(before["unused.weight"], after["unused.weight"])
    assert after["norm.num_batches_tracked"] == 3
    assert 0 < after["norm.running_var"].mean() < 2
    ddp = Normed()
    trainer(tmp_path, 2, "ddp", options={"find_unused_parameters": True}, **how).fit(ddp)
    # Each rank has running statistics of its own; which rank's are written is the checkpoint's choice.
    assert_close(*({k: v for k, v in m.state_dict().items() if "running" not in k} for m in (module, ddp)))


class Skips(Line):
    """Returns no loss for every second batch, and is validated between steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self(batch[0]), batch[1])
        return loss if batch_idx % 2 == 0 else None


def test_a_forward_without_backward_leaves_nothing_stale(tmp_path: Path) -> None:
    how = {"accumulate_grad_batches": 2, "max_steps": 5, "val_check_interval": 2, "limit_val_batches": 1}
    one, two = Skips(batch_size=4), Skips(batch_size=2)
    trainer(tmp_path, 1, "single", **how).fit(one)
    trainer(tmp_path, 2, "ddp_fully_sharded", **how).fit(two)
    assert_close(two.state_dict(), one.state_dict())


@pytest.mark.parametrize("strategy", BOTH)
def test_evaluation(tmp_path: Path, strategy: str) -> None:
    module = Net(batch_size=16)
    together = trainer(tmp_path, 2, strategy).test(module)[0]
    assert together == pytest.approx(trainer(tmp_path, 1, "single").test(module)[0], abs=1e-6)


class Shares(TwoPlayers):
    """Fails where its optimizers aren't shared out."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        assert all(isinstance(each.optimizer, ShardedOptimizer) for each in self.optimizers())
        super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("options", "tolerance"), [({}, 1e-6), ({"ddp_comm_hook": "bf16"}, 2e-2)])
def test_manual_optimization(tmp_path: Path, options: dict[str, Any], tolerance: float) -> None:
    one, two = TwoPlayers(), Shares()
    two.batch_size = 2
    trainer(tmp_path, 1, "single", max_steps=6).fit(one)
    trainer(tmp_path, 2, "ddp_sharded", max_steps=6, options=options).fit(two)
    assert_close(two.state_dict(), one.state_dict(), tolerance)


class Scaled(Line):
    """Has a parameter without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))


def test_what_cannot_be_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(stratagem.CombinationError, match=r"manual optimization.*ddp_sharded"):
        trainer(tmp_path, 2, "ddp_fully_sharded").fit(TwoPlayers())
    with pytest.raises(stratagem.CombinationError, match="several times per step"):
        trainer(tmp_path, 1, "ddp_sharded", max_steps=1).fit(Closure())
    averages = (
        {"model_averaging_period": 4},
        {"period_group_size": "auto"},
        {"ddp_comm_hook": "post_local_sgd"},
    )
    for options in averages:
        with pytest.raises(stratagem.ConfigError, match="choose strategy='ddp'"):
            DDPShardedStrategy(**options)
    with pytest.raises(
        stratagem.ConfigError, match="blocks names 'Block', and this model has none: it has Dropout, Linear"
    ):
        trainer(tmp_path, 2, DDPFullyShardedStrategy(blocks="Block"), max_steps=1).fit(Line())
    with pytest.raises(stratagem.ConfigError, match="parameter 'scale' has no dimension along which"):
        trainer(tmp_path, 2, "ddp_fully_sharded", max_steps=1).fit(Scaled())
    with pytest.raises(stratagem.ConfigError, match="must be one of forkserver"):
        DDPFullyShardedStrategy(start_method="thread")
    with pytest.raises(stratagem.ConfigError, match="give one of them"):
        DDPFullyShardedStrategy(timeout_s=3, timeout=torch.distributed.default_pg_timeout)


def test_an_optimizer_without_parameters_is_refused() -> None:
    with pytest.raises(
        stratagem.ConfigError, match=r"^SGD has no parameters, and torch's ZeroRedundancyOptimizer"
    ):
        ShardedOptimizer(torch.optim.SGD([{"params": []}], lr=0.1))


def test_ddp_sharded_spawn_starts_by_spawn() -> None:
    from stratagem.resolve.run import assemble

    run = assemble(stratagem.RunConfig(strategy="ddp_sharded_spawn", accelerator="cpu", devices=2))
    assert (type(run.strategy), run.plan.start_method) == (DDPShardedStrategy, "spawn")
