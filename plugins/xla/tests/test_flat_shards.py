"""Shards of parameters, one per process, without torch_xla: cut, put together, read; and options."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stratagem_xla import XlaAccelerator, XLAFSDPStrategy, library
from stratagem_xla.flat_shards import FlatShardsReader, fill, whole
from stratagem_xla.wrapping import Wrapped, point_at_shards
from torch import nn

import stratagem
from stratagem.config import RunConfig
from stratagem.resolve.run import assemble
from stratagem.sdk.states import TensorInfo

RANKS = 3


class Ranks:
    """As collectives, of which all ranks' shards are known."""

    def __init__(self, shards: list[torch.Tensor]) -> None:
        self.shards = shards

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.shards)


def cut(given: torch.Tensor, size: tuple[int, ...]) -> list[torch.Tensor]:
    shards = [torch.full(size, torch.nan) for _ in range(RANKS)]
    for rank, shard in enumerate(shards):
        fill(shard, given, rank)
    return shards


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((4, 5), (128,)),
        ((30, 20), (256,)),
        ((), (128,)),
        ((7, 2), (3, 2)),
        ((2, 2), (1, 2)),
        ((384,), (128,)),
    ],
)
def test_what_was_cut_comes_together(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    given = torch.rand(shape)
    shards = cut(given, size)
    again = whole(shards[0], torch.Size(shape), Ranks(shards))  # type: ignore[arg-type]  # only gathers
    assert torch.equal(again, given)
    assert float(torch.cat([shard.reshape(-1) for shard in shards]).sum()) == pytest.approx(
        float(given.sum())
    )


class Saved(stratagem.CheckpointReader):
    """A checkpoint in memory."""

    def __init__(self, given: Mapping[str, torch.Tensor]) -> None:
        self.given, self.state, self.world_size = given, {}, 1
        self.tensors = {key: TensorInfo(tuple(value.shape), value.dtype) for key, value in given.items()}

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return None

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for key, target in targets.items():
            if target.shape != self.given[key].shape:
                raise stratagem.CheckpointError(key)
            target.copy_(self.given[key])


def test_every_process_reads_its_piece() -> None:
    saved = {
        "model/weight": torch.rand(20, 30),
        "model/count": torch.tensor(3),
        "model/scale": torch.rand(()),
        "optimizer/0/weight/exp_avg": torch.rand(20, 30),
        "optimizer/0/weight/step": torch.tensor(5.0),
        "optimizer/0/scale/exp_avg": torch.rand(()),
        "optimizer/0/scale/step": torch.tensor(7.0),
    }
    shard, small = torch.Size([256]), torch.Size([128])
    shapes = {"weight": (torch.Size([20, 30]), shard), "scale": (torch.Size([]), small)}
    expected_shapes = {
        "model/weight": shard,
        "model/count": (),
        "model/scale": small,
        "optimizer/0/weight/exp_avg": shard,
        "optimizer/0/weight/step": (),
        "optimizer/0/scale/exp_avg": small,
        "optimizer/0/scale/step": (),
    }
    for rank in range(RANKS):
        reader = FlatShardsReader(Saved(saved), shapes, rank)
        assert {key: info.shape for key, info in reader.tensors.items()} == expected_shapes
        targets = {key: torch.full(info.shape, 9, dtype=info.dtype) for key, info in reader.tensors.items()}
        reader.read(targets)
        for key, target in targets.items():
            shape = expected_shapes[key]
            expected = saved[key] if shape == () else cut(saved[key], tuple(shape))[rank]
            assert torch.equal(target, expected), key


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    shapes = {"weight": (torch.Size([4, 5]), torch.Size([128]))}
    with pytest.raises(stratagem.CheckpointError):
        FlatShardsReader(Saved({"model/weight": torch.rand(5, 5)}), shapes, 0).read(
            {"model/weight": torch.zeros(128)}
        )


def test_an_optimizer_steps_shards_with_its_states() -> None:
    layer = nn.Linear(5, 4)
    layer.scale = nn.Parameter(torch.ones(()))
    groups = [{"params": [layer.weight]}, {"params": [layer.bias, layer.scale], "lr": 0.5}]
    optimizer = torch.optim.Adagrad(groups)
    with torch.no_grad():
        optimizer.state[layer.weight]["sum"].copy_(torch.arange(20.0).view(4, 5))
    shards = {id(parameter): nn.Parameter(torch.zeros(8)) for parameter in layer.parameters()}
    shapes = {id(shards[id(parameter)]): parameter.shape for parameter in layer.parameters()}
    layer.weight.data = torch.zeros(1)  # as torch_xla empties one that was on the device
    wrapped: Any = SimpleNamespace(shards=shards, shapes=shapes)
    assert set(Wrapped.__dataclass_fields__) >= {"shards", "shapes"}
    point_at_shards(optimizer, wrapped, 1)
    assert [group["params"] for group in optimizer.param_groups] == [
        [shards[id(layer.weight)]],
        [shards[id(layer.bias)], shards[id(layer.scale)]],
    ]
    assert optimizer.param_groups[1]["lr"] == 0.5
    state = optimizer.state[shards[id(layer.weight)]]
    assert state["sum"].tolist() == [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    assert state["step"].shape == ()
    assert optimizer.state[shards[id(layer.bias)]]["sum"].shape == (8,)
    of_scalar = optimizer.state[shards[id(layer.scale)]]
    assert (of_scalar["sum"].shape, of_scalar["step"].shape) == ((8,), ())
    assert len(optimizer.state) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reshard_after": True}, "xla_fsdp has no option 'reshard_after'"),
        ({"flatten_parameters": True}, "flatten_parameters=True is not available"),
        ({"sharding_rank": 1}, "sharding_rank=1 is not available"),
        ({"reduce_scatter_bucket_size_mb": 8}, "would lose the gradients"),
        ({"compute_dtype": "float16"}, "compute_dtype='float16' must be one of float32, bfloat16"),
        ({"start_method": "popen"}, "must be one of spawn, fork"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        XLAFSDPStrategy(spmd=False, **options)


def test_options_that_are_passed_on() -> None:
    strategy = XLAFSDPStrategy(
        compute_dtype=torch.bfloat16, buffer_dtype="float32", flatten_parameters=False, param_init_fn=None
    )
    assert strategy.wrapper_options == {"compute_dtype": torch.bfloat16, "buffer_dtype": torch.float32}


@pytest.fixture
def tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "problem", lambda: None)
    monkeypatch.setattr("stratagem.plugin.component.Component.missing", lambda component: [])
    monkeypatch.setattr(library, "tpu_devices", lambda: 4)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/somewhere")
    monkeypatch.delenv("PJRT_DEVICE", raising=False)


@pytest.mark.usefixtures("tpus")
def test_processes_where_there_are_tpus() -> None:
    run = assemble(RunConfig(strategy="xla_fsdp", strategy_options={"spmd": False}))
    assert run.plan.world_size == 4
    assert type(run.launcher()).__name__ == "XlaLauncher"
    assert "collective_forward" in run.capabilities.features
    assert "manual_backward" not in run.capabilities.features
    assert assemble(RunConfig(strategy="xla_fsdp")).plan.world_size == 1


@pytest.mark.usefixtures("tpus")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"precision": "64-true"}, "64-true"),
        ({"precision": "bf16-mixed", "strategy_options": {"compute_dtype": "bfloat16"}}, "both say in what"),
    ],
)
def test_refusals_before_launch(config: dict[str, Any], message: str) -> None:
    options = {"spmd": False, **config.pop("strategy_options", {})}
    with pytest.raises(stratagem.UsageError, match=message):
        assemble(RunConfig(strategy="xla_fsdp", strategy_options=options, **config))


@pytest.mark.usefixtures("tpus")
def test_several_devices_of_a_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    config = RunConfig(strategy="xla_fsdp", accelerator="xla", devices=2, strategy_options={"spmd": False})
    with pytest.raises(stratagem.CombinationError, match="PJRT's CPU only has one"):
        assemble(config)


def test_a_process_with_a_device_of_its_own_calls_it_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [torch.device("xla", index) for index in range(4)]
    strategy = XLAFSDPStrategy(spmd=False, parallel_devices=devices)
    assert (XlaAccelerator().device(3), strategy.parallel_devices) == (devices[3], devices)
    monkeypatch.setenv(library.OWN_DEVICE, "1")
    assert (XlaAccelerator().device(3), strategy.parallel_devices) == (devices[0], devices[:1] * 4)
