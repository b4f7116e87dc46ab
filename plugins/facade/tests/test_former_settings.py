"""Old spellings are refused with today's."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_facade.former_settings import NEW_NAMES, RENAMED, renamed_selection
from stratagem_facade.index import INDEX

from stratagem.errors import ConfigError


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ({"gpus": 2}, "gpus=2 is now called accelerator='cuda', devices=2"),
        ({"gpus": "0,1"}, "gpus='0,1' is now called accelerator='cuda', devices='0,1'"),
        ({"gpus": [1]}, "gpus=[1] is now called accelerator='cuda', devices=[1]"),
        ({"gpus": 0}, "gpus=0 is now called accelerator='cpu'"),
        (
            {"gpus": "0"},
            "gpus='0' is now called accelerator='cuda', devices=[0] for the first device, "
            "or accelerator='cpu' for none",
        ),
        ({"gpus": None}, "gpus=None is now called accelerator='cpu'"),
        ({"tpu_cores": 8}, "tpu_cores=8 is now called accelerator='tpu', devices=8"),
        ({"ipus": 4}, "ipus=4 is now called accelerator='ipu', devices=4"),
        ({"hpus": 1}, "hpus=1 is now called accelerator='hpu', devices=1"),
        ({"num_processes": 2}, "num_processes=2 is now called accelerator='cpu', devices=2"),
        (
            {"auto_select_gpus": True},
            "auto_select_gpus=True is gone: name the devices that nvidia-smi shows as least used, "
            "as in accelerator='cuda', devices=[0, 1]",
        ),
        ({"auto_select_gpus": False}, "auto_select_gpus=False is gone, and is so anyway: leave it out"),
        ({"distributed_backend": "ddp"}, "distributed_backend='ddp' is now called strategy='ddp'"),
        ({"accelerator": "ddp"}, "accelerator='ddp' is now called strategy='ddp'"),
        ({"accelerator": "ddp_cpu"}, "accelerator='ddp_cpu' is now called accelerator='cpu', strategy='ddp'"),
        ({"accelerator": "horovod"}, "accelerator='horovod' is now called strategy='horovod'"),
        ({"strategy": "fsdp_native"}, "strategy='fsdp_native' is now called strategy='fsdp'"),
        (
            {"strategy": "fsdp_native_full_shard_offload"},
            "strategy='fsdp_native_full_shard_offload' is now called strategy='fsdp_offload'",
        ),
        ({"strategy": "ddp_cpu"}, "strategy='ddp_cpu' is now called accelerator='cpu', strategy='ddp'"),
        ({"plugins": "fsdp_native"}, "plugins='fsdp_native' is now called strategy='fsdp'"),
        ({"plugins": "ddp_sharded"}, "plugins='ddp_sharded' is now called strategy='ddp_sharded'"),
        (
            {"plugins": ["deepspeed_stage_2"]},
            "plugins=['deepspeed_stage_2'] is now called strategy='deepspeed_stage_2'",
        ),
        (
            {"replace_sampler_ddp": False},
            "replace_sampler_ddp=False is now called use_distributed_sampler=False",
        ),
        (
            {"resume_from_checkpoint": "a.ckpt"},
            "resume_from_checkpoint='a.ckpt' is now called fit(..., ckpt_path='a.ckpt')",
        ),
        (
            {"gpus": 4, "accelerator": "dp"},
            "gpus=4 is now called accelerator='cuda', devices=4; accelerator='dp' is now called strategy='dp'",
        ),
    ],
)
def test_the_message_has_todays_spelling(old: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        renamed_selection(**old)
    assert str(error.value) == message


def test_todays_spellings_pass() -> None:
    renamed_selection(accelerator="cuda", devices=2, strategy="ddp", plugins=["tracing", object()], typo=1)
    renamed_selection(accelerator="auto", plugins=None)


def test_every_entry_answers_any_value() -> None:
    for name, today in RENAMED.items():
        for value in (None, True, 1, "x", ["x"], object()):
            answer = today(value)
            assert answer is None or answer.startswith("is "), name


def test_what_a_former_strategy_is_called_now_is_offered() -> None:
    for name, present in NEW_NAMES.items():
        assert name not in INDEX.of_kind("strategy")
        assert present in INDEX.of_kind("strategy")


@pytest.mark.parametrize("value", ["ddp", "auto", object(), ["ddp"], {}])
def test_a_strategy_of_today_is_left_to_others(value: Any) -> None:
    renamed_selection(strategy=value)
