"""Old spellings are refused with today's."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.errors import ConfigError
from stratagem.plugin.renamed import RENAMED, renamed_selection


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ({"gpus": 2}, "gpus=2 is spelt accelerator='cuda', devices=2 now"),
        ({"gpus": "0,1"}, "gpus='0,1' is spelt accelerator='cuda', devices='0,1' now"),
        ({"gpus": [1]}, "gpus=[1] is spelt accelerator='cuda', devices=[1] now"),
        ({"gpus": 0}, "gpus=0 is spelt accelerator='cpu' now"),
        ({"gpus": None}, "gpus=None is spelt accelerator='cpu' now"),
        ({"tpu_cores": 8}, "tpu_cores=8 is spelt accelerator='tpu', devices=8 now"),
        (
            {"ipus": 4},
            "ipus=4 is spelt accelerator='ipu', devices=4 now"
            ", which needs a plugin of another maker: Stratagem ships no accelerator of this name",
        ),
        (
            {"hpus": 1},
            "hpus=1 is spelt accelerator='hpu', devices=1 now"
            ", which needs a plugin of another maker: Stratagem ships no accelerator of this name",
        ),
        ({"num_processes": 2}, "num_processes=2 is spelt accelerator='cpu', devices=2 now"),
        (
            {"auto_select_gpus": True},
            "auto_select_gpus=True is gone: name the devices, as in accelerator='cuda', devices=[0, 1]",
        ),
        ({"distributed_backend": "ddp"}, "distributed_backend='ddp' is spelt strategy='ddp' now"),
        ({"accelerator": "ddp"}, "accelerator='ddp' is spelt strategy='ddp' now"),
        ({"accelerator": "ddp_cpu"}, "accelerator='ddp_cpu' is spelt accelerator='cpu', strategy='ddp' now"),
        (
            {"accelerator": "horovod"},
            "accelerator='horovod' is spelt strategy='horovod' now"
            ", which needs a plugin of another maker: Stratagem ships no strategy of this name",
        ),
        ({"plugins": "fsdp_native"}, "plugins='fsdp_native' is spelt strategy='fsdp' now"),
        ({"plugins": "ddp_sharded"}, "plugins='ddp_sharded' is spelt strategy='ddp_sharded' now"),
        (
            {"plugins": ["deepspeed_stage_2"]},
            "plugins=['deepspeed_stage_2'] is spelt strategy='deepspeed_stage_2' now",
        ),
        (
            {"replace_sampler_ddp": False},
            "replace_sampler_ddp=False is spelt use_distributed_sampler=False now",
        ),
        (
            {"resume_from_checkpoint": "a.ckpt"},
            "resume_from_checkpoint='a.ckpt' is spelt fit(..., ckpt_path='a.ckpt') now",
        ),
        (
            {"gpus": 4, "accelerator": "dp"},
            "gpus=4 is spelt accelerator='cuda', devices=4 now; accelerator='dp' is spelt strategy='dp' now",
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
