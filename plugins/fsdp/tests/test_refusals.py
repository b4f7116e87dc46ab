"""Wrong use is refused with what to change; a rank that fails ends the run; options without effect are reported."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
from blocks import Block, Blocks
from small import Fails, Line
from stratagem_fsdp import FSDPStrategy
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

import stratagem
from stratagem.config import RunConfig
from stratagem.resolve.run import assemble


def trainer(devices: int = 1, strategy: Any = None, **how: Any) -> stratagem.Trainer:
    settings: dict[str, Any] = {"max_steps": 2, "limit_val_batches": 0, "enable_progress_bar": False, **how}
    return stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy or FSDPStrategy(start_method="fork"),
        devices=devices,
        enable_checkpointing=False,
        logger=False,
        **settings,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sharding_strategy": "ZERO"}, "sharding_strategy='ZERO' doesn't exist: choose one of FULL_SHARD"),
        ({"cpu_offload": "yes"}, "cpu_offload='yes' is a str: give True, False"),
        ({"mixed_precision": "bf16"}, "mixed_precision='bf16' is a str: give torch's MixedPrecisionPolicy"),
        ({"backward_prefetch": "LATE"}, "backward_prefetch='LATE' doesn't exist"),
        ({"start_method": "thread"}, "start_method='thread' must be one of"),
        ({"timeout": timedelta(1), "timeout_s": 3.0}, "say the same thing"),
        ({"timeout_s": 0.0}, "must be more than 0"),
        ({"mp_policy": 1}, "mp_policy=1 is now called mixed_precision"),
        (
            {"state_dict_type": "full"},
            "state_dict_type='full' is gone, as a checkpoint is always written in shards",
        ),
        ({"device_id": 0}, "device_id=0 is gone, as each rank has the device"),
        ({"ignored_module": []}, "has no setting 'ignored_module'; nearest: ignored_modules"),
        ({"shard_placement_fn": max}, "cut by rows: leave it out"),
    ],
)
def test_values_that_do_not_exist(given: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        FSDPStrategy(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"auto_wrap_policy": ["Blok"]},
            "auto_wrap_policy names 'Blok', and this model has none: it has .*Block",
        ),
        ({"auto_wrap_policy": [3]}, "auto_wrap_policy has 3: give module classes"),
        ({"auto_wrap_policy": lambda module: True}, "can't be asked as policy"),
        ({"activation_checkpointing_policy": {torch.nn.GRU}}, "activation_checkpointing_policy names 'GRU'"),
        (
            {"device_mesh": (2, 2)},
            r"device_mesh=\(2, 2\) doesn't fit sharding_strategy=FULL_SHARD in 1 processes",
        ),
        (
            {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2)},
            r"give \(replicas, shards\) with replicas × shards = 1",
        ),
        ({"sharding_strategy": "NO_SHARD", "device_mesh": (1, 1)}, "leave it out"),
    ],
)
def test_what_does_not_fit_the_model_or_the_run(given: dict[str, Any], message: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=message):
        trainer(strategy=FSDPStrategy(**given)).fit(Blocks())


def test_an_unknown_setting_names_those_there_are() -> None:
    with pytest.raises(stratagem.ConfigError, match=r"no setting 'shard'; .*sharding_strategy"):
        trainer(strategy="fsdp", strategy_options={"shard": 1}).fit(Blocks())


def test_a_mesh_that_is_given_is_for_one_number_of_processes() -> None:
    where = {"accelerator": "cpu", "num_nodes": "1:2", "rdzv_endpoint": "localhost:1"}
    assert "elastic" in assemble(RunConfig(strategy=FSDPStrategy(), **where)).capabilities.features
    given = FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(1, 1))
    with pytest.raises(stratagem.CombinationError, match="a number of nodes that changes while it runs"):
        assemble(RunConfig(strategy=given, **where))


def test_modules_that_differ_among_ranks() -> None:
    with pytest.raises(stratagem.ConfigError, match="rank 1 built another module than rank 0"):
        trainer(2).fit(Grown())


class Grown(Line):
    def configure_model(self) -> None:
        self.more = torch.nn.Linear(2, 2 + torch.distributed.get_rank())


def test_a_rank_that_raises_ends_the_run_with_its_traceback() -> None:
    with pytest.raises(stratagem.WorkerError) as caught:
        trainer(2, max_steps=12).fit(Fails())
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert "the third batch is cursed" in str(caught.value)
    assert "in training_step" in caught.value.traceback


class FailsInBackward(Line):
    """On rank 1 alone, while rank 0 waits for its gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if torch.distributed.get_rank() == 1:
            loss.register_hook(self.refuse)
        return loss

    def refuse(self, gradient: torch.Tensor) -> None:
        raise ValueError("this gradient is cursed")


def test_a_rank_that_raises_in_backward_does_not_wait_for_the_others() -> None:
    strategy = FSDPStrategy(start_method="fork", timeout_s=60)
    with pytest.raises(stratagem.WorkerError, match=r"rank 1 .*this gradient is cursed"):
        trainer(2, strategy).fit(FailsInBackward())


def test_options_without_effect_are_reported_once() -> None:
    strategy = FSDPStrategy(
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        forward_prefetch=True,
        limit_all_gathers=False,
        use_orig_params=False,
        mixed_precision=MixedPrecision(buffer_dtype=torch.float16),
    )
    with pytest.warns(UserWarning, match="fsdp has no use for") as caught:
        trainer(strategy=strategy).fit(Line())
    (message,) = [str(warning.message) for warning in caught]
    named = ("use_orig_params", "limit_all_gathers", "backward_prefetch", "forward_prefetch", "buffer_dtype")
    assert all(name in message for name in named)


def test_values_that_are_how_it_works_are_taken_in_silence() -> None:
    strategy = FSDPStrategy(
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        cpu_offload=CPUOffload(offload_params=True),
        backward_prefetch="BACKWARD_PRE",
        limit_all_gathers=True,
        use_orig_params=True,
        auto_wrap_policy={Block},
    )
    assert strategy.sharding_strategy == "SHARD_GRAD_OP"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(strategy=strategy).fit(Blocks())
    assert [str(warning.message) for warning in caught if "fsdp" in str(warning.message)] == []
