"""fsdp gives the numbers of one process on the same global batches, at 1, 2 and 4 processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import Block, Blocks, LateBlocks, TwoOptimizers
from parity import Net, plain_training
from stratagem_fsdp import FSDPStrategy
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

import stratagem

TOLERANCE = 1e-6
Alone = Callable[..., dict[str, torch.Tensor]]
BATCH = 8


def fit(tmp_path: Path, module: stratagem.Module, devices: int, strategy: Any = None, **how: Any) -> Any:
    if strategy is None or isinstance(strategy, dict):
        strategy = FSDPStrategy(start_method="fork", **(strategy or {}))
    settings: dict[str, Any] = {"max_steps": 6, "limit_val_batches": 0, "enable_progress_bar": False, **how}
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        seed=7,
        enable_checkpointing=False,
        logger=False,
        run_dir=tmp_path,
        **settings,
    )
    trainer.fit(module)
    return trainer


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone()
        for name, value in module.state_dict().items()
        if "statistics" not in name
    }


def assert_close(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float = TOLERANCE
) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    @cache
    def train(cls: type[Blocks] = Blocks, **how: Any) -> dict[str, torch.Tensor]:
        module = cls(batch_size=BATCH)
        fit(tmp_path_factory.mktemp("alone"), module, 1, "single", **how)
        return weights(module)

    return train


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_equals_plain_torch(tmp_path: Path, processes: int) -> None:
    module = Net(batch_size=32 // processes)
    fit(tmp_path, module, processes, gradient_clip_val=0.1)
    expected, _ = plain_training(6, 32, seed=7, clip=0.1)
    assert_close(weights(module.net), expected)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("sharding_strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_awkward_parameters(tmp_path: Path, alone: Alone, sharding_strategy: str, processes: int) -> None:
    # Tied, frozen, unused, scalar, uneven; a dict of outputs; a norm over shards and whole parameters.
    module = Blocks(batch_size=BATCH // processes)
    start = weights(module)
    mesh = (2, processes // 2) if sharding_strategy == "HYBRID_SHARD" and processes > 1 else None
    how = {"sharding_strategy": sharding_strategy, "device_mesh": mesh}
    fit(tmp_path, module, processes, how, gradient_clip_val=0.5)
    trained = weights(module)
    assert_close(trained, alone(gradient_clip_val=0.5))
    assert module.head.weight is module.embedding.weight
    assert trained["steps"] == 6
    for name in ("blocks.0.up.weight", "unused.weight"):
        assert torch.equal(trained[name], start[name])
    assert not torch.equal(trained["gain"], start["gain"])


# Twelve batches per epoch: with windows of 5 the last one is partial.
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("sharding_strategy", ["FULL_SHARD", "HYBRID_SHARD"])
def test_accumulation(tmp_path: Path, sharding_strategy: str, window: int) -> None:
    one, two = Blocks(batch_size=BATCH), Blocks(batch_size=BATCH // 2)
    how: dict[str, Any] = {"accumulate_grad_batches": window, "max_steps": 6}
    fit(tmp_path, one, 1, "single", **how)
    mesh = (2, 1) if sharding_strategy == "HYBRID_SHARD" else None
    fit(tmp_path, two, 2, {"sharding_strategy": sharding_strategy, "device_mesh": mesh}, **how)
    # The buffer counts forwards.
    assert_close(weights(two), weights(one))


def test_accumulation_in_four_processes_with_schedules_and_clipping_of_values(tmp_path: Path) -> None:
    how: dict[str, Any] = {"accumulate_grad_batches": 2, "max_steps": 8}
    clip = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    one, four = Net(batch_size=16, scheduled=True), Net(batch_size=4, scheduled=True)
    fit(tmp_path, one, 1, "single", **how, **clip)
    fit(tmp_path, four, 4, **how, **clip)
    assert_close(weights(four), weights(one))


@pytest.mark.parametrize("processes", [1, 2])
def test_several_optimizers(tmp_path: Path, alone: Alone, processes: int) -> None:
    module = TwoOptimizers(batch_size=BATCH // processes)
    fit(tmp_path, module, processes, gradient_clip_val=0.5)
    assert_close(weights(module), alone(TwoOptimizers, gradient_clip_val=0.5))


@pytest.mark.parametrize("processes", [1, 2])
def test_offloaded(tmp_path: Path, alone: Alone, processes: int) -> None:
    module = Blocks(batch_size=BATCH // processes)
    fit(tmp_path, module, processes, "fsdp_offload", gradient_clip_val=0.5)
    assert_close(weights(module), alone(gradient_clip_val=0.5))


@pytest.mark.parametrize(
    ("policy", "processes"), [({Block}, 1), (["Block"], 2), (["LayerNorm", "Linear"], 2)]
)
def test_activation_checkpointing(tmp_path: Path, alone: Alone, policy: Any, processes: int) -> None:
    module = Blocks(batch_size=BATCH // processes)
    fit(tmp_path, module, processes, {"activation_checkpointing_policy": policy}, gradient_clip_val=0.5)
    assert_close(weights(module), alone(gradient_clip_val=0.5))
    assert "forward" not in module.blocks[1].__dict__


def test_activations_are_computed_again_around_smaller_units(tmp_path: Path, alone: Alone) -> None:
    module = Blocks(batch_size=BATCH // 2)
    how = {"auto_wrap_policy": ["LayerNorm"], "activation_checkpointing_policy": ["Block"]}
    fit(tmp_path, module, 2, how, gradient_clip_val=0.5)
    assert_close(weights(module), alone(gradient_clip_val=0.5))


class Rank0s(stratagem.Callback):
    """Keeps what rank 0 has trained."""

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        tensors = trainer.prepared.model_tensors()
        self.values = {
            name[len("model/") :]: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
            for name, value in tensors.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"values": getattr(self, "values", {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


# Layers are made in the workers alone: the launching process's module stays as it was, and fit says so.
@pytest.mark.filterwarnings("ignore:this process's .* keeps the values:UserWarning")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_made_late_without_memory(tmp_path: Path, alone: Alone, processes: int) -> None:
    kept = Rank0s()
    fit(tmp_path, LateBlocks(batch_size=BATCH // processes), processes, gradient_clip_val=0.5, callbacks=kept)
    kept.values = {name: value for name, value in kept.values.items() if "statistics" not in name}
    assert_close(kept.values, alone(gradient_clip_val=0.5))


def test_ranks_that_differ_start_from_rank_0(tmp_path: Path, alone: Alone) -> None:
    module = Unlike(batch_size=BATCH // 2)
    fit(tmp_path, module, 2)
    assert_close(weights(module), alone())
    with pytest.raises(stratagem.ConfigError, match="rank 1 starts with other values in Block than rank 0"):
        fit(tmp_path, Unlike(batch_size=BATCH // 2), 2, {"sync_module_states": False})


class Unlike(Blocks):
    """Begins with other values on other ranks."""

    def configure_model(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += torch.distributed.get_rank()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true", "bf16-true"])
def test_precisions_mean_the_same_as_under_ddp(tmp_path: Path, precision: str) -> None:
    how: dict[str, Any] = {"precision": precision, "gradient_clip_val": 0.5}
    ours, theirs = Net(batch_size=16), Net(batch_size=16)
    fit(tmp_path, theirs, 2, "ddp_fork", **how)
    fit(tmp_path, ours, 2, **how)
    assert_close(weights(ours), weights(theirs), atol=0.01 if precision == "bf16-true" else TOLERANCE)


def test_scaled_losses_and_parameters_that_are_not_sharded_are_refused(tmp_path: Path) -> None:
    with pytest.raises((stratagem.PrecisionError, stratagem.WorkerError), match="'gain' has no dimension"):
        fit(tmp_path, Blocks(), 1, precision="16-mixed")


@pytest.mark.parametrize("cls", [MixedPrecision, MixedPrecisionPolicy])
def test_explicit_mixed_precision_gathers_in_16_bits(tmp_path: Path, cls: Any) -> None:
    module = In16Bits(batch_size=16)
    policy = cls(torch.bfloat16, torch.float32)
    fit(tmp_path, module, 2, FSDPStrategy(mixed_precision=policy))
    whole, _ = plain_training(6, 32, seed=7)
    trained = weights(module.net)
    assert trained["4.weight"].dtype == torch.float32
    assert_close(trained, whole, atol=0.05)
    assert (trained["4.weight"] - whole["4.weight"]).abs().max() > 1e-5


class In16Bits(Net):
    def loss(self, batch: Any) -> Any:
        assert self.net[4].weight.dtype == torch.bfloat16
        return super().loss(batch)


@pytest.mark.parametrize("ignored", ["Linear", "object"])
def test_ignored_modules_stay_whole_and_are_trained_alike(tmp_path: Path, alone: Alone, ignored: str) -> None:
    module = Blocks(batch_size=BATCH // 2)
    left = [child for child in module.children() if isinstance(child, torch.nn.Linear)]
    assert left
    given: Any = ["Linear"] if ignored == "Linear" else left
    fit(tmp_path, module, 2, {"ignored_modules": given, "reshard_after_forward": False})
    assert_close(weights(module), alone())


def test_an_ignored_module_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(stratagem.ConfigError, match="ignored_modules has a Linear that isn't in Blocks"):
        fit(tmp_path, Blocks(batch_size=BATCH), 2, {"ignored_modules": [torch.nn.Linear(1, 1)]})
