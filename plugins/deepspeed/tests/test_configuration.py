"""Where the engine's configuration comes from, and what is refused before anything is started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed import DeepSpeedStrategy, refusals
from torch import nn

from stratagem import CheckpointError, CombinationError, ConfigError, PrecisionError, RunConfig
from stratagem.resolve.run import assemble
from stratagem.runtime.plan import plan_lines


def tree(**keywords: Any) -> Any:
    return DeepSpeedStrategy(**keywords).configuration.tree


def test_keywords_become_the_engines_keys() -> None:
    made = tree(
        stage=3,
        offload_optimizer=True,
        offload_parameters=True,
        pin_memory=True,
        sub_group_size=7,
        cpu_checkpointing=True,
        logging_batch_size_per_gpu=5,
        stage3_max_live_parameters=9,
        hysteresis=3,
    )
    zero = made["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert (zero["sub_group_size"], zero["stage3_max_live_parameters"]) == (7, 9)
    assert made["activation_checkpointing"]["cpu_checkpointing"] is True
    assert made["train_micro_batch_size_per_gpu"] == 5
    assert made["fp16"] == {"hysteresis": 3}


def test_nvme_keywords_have_todays_names(tmp_path: Path) -> None:
    made = tree(
        stage=3,
        remote_device="nvme",
        offload_optimizer=True,
        offload_optimizer_device="nvme",
        nvme_path=str(tmp_path),
        params_buffer_count=6,
        optimizer_buffer_count=8,
        thread_count=2,
        queue_depth=3,
    )
    zero = made["zero_optimization"]
    assert zero["offload_param"]["buffer_count"] == 6
    assert zero["offload_optimizer"]["buffer_count"] == 8
    assert made["aio"]["intra_op_parallelism"] == 2
    assert made["aio"]["queue_depth"] == 3


def test_zero_optimization_false_is_stage_0() -> None:
    assert tree(zero_optimization=False)["zero_optimization"]["stage"] == 0


@pytest.mark.parametrize("how", ["dict", "file", "variable"])
def test_a_configuration_wins_over_keywords(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"zero_optimization": {"stage": 1, "overlap_comm": False}, "gradient_clipping": 0.5}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(own))
    if how == "variable":
        monkeypatch.setenv("STRATAGEM_DEEPSPEED_CONFIG", str(path))
    config: Any = {"dict": own, "file": path, "variable": None}[how]
    made = DeepSpeedStrategy(stage=3, config=config).configuration
    assert made.stage == 1
    assert made.tree["zero_optimization"]["contiguous_gradients"] is True
    assert set(made.overruled) == {"zero_optimization.stage", "zero_optimization.overlap_comm"}
    lines = "\n".join(made.lines())
    assert "ZeRO stage 1" in lines
    assert "gradient_clipping" in lines
    assert "wins over keywords in zero_optimization.stage" in lines
    assert how != "variable" or "STRATAGEM_DEEPSPEED_CONFIG" in lines


def test_the_plan_has_its_lines() -> None:
    run = assemble(RunConfig(strategy="deepspeed_stage_3_offload", accelerator="cpu", devices=1))
    assert any("ZeRO stage 3, optimizer states on cpu, parameters on cpu" in line for line in plan_lines(run))


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"stage": 4}, "choose 0, 1, 2 or 3"),
        ({"stage": 2, "offload_parameters": True}, "only stage 3 can keep parameters"),
        ({"stage": 0, "offload_optimizer": True}, "choose stage 1, 2 or 3"),
        (
            {"stage": 2, "offload_optimizer": True, "offload_optimizer_device": "nvme"},
            "leave them in CPU memory",
        ),
        (
            {"stage": 3, "offload_optimizer": True, "offload_optimizer_device": "tape"},
            "must be one of cpu, nvme",
        ),
        ({"stage": 3, "remote_device": "nvme", "nvme_path": "/no/such/folder"}, "isn't a folder"),
        ({"cpu_offload": True}, "now called offload_optimizer"),
        ({"cpu_offload_params": True}, "now called offload_parameters"),
        ({"load_full_weights": True}, "every checkpoint is loaded"),
        ({"legacy_stage1": True}, "gone"),
        ({"overlap_com": True}, "nearest: overlap_comm, overlap_events"),
        ({"logging_batch_size_per_gpu": 0}, "or 'auto'"),
        ({"start_method": "thread"}, "must be one of forkserver"),
        ({"config": {"zero_optimisation": {}}}, "nearest: zero_optimization"),
        ({"config": {"zero_optimization": {"stag": 1}}}, "nearest: stage"),
        ({"config": {"zero_optimization": {"cpu_offload": True}}}, 'offload_optimizer: {"device": "cpu"}'),
        ({"config": {"aio": {"thread_count": 2}}}, "now called intra_op_parallelism"),
        ({"config": {"zero_optimization": 3}}, "a mapping of keys"),
        ({"config": {"zero_optimization": {"stage": 7}}}, "choose 0, 1, 2 or 3"),
        ({"config": {"elasticity": {}}}, "gone from DeepSpeed"),
        ({"config": {"optimizer": {"params": {}}}}, "without a type"),
        ({"config": {"optimizer": {"type": "OneBitAdam"}}}, "doesn't have any more"),
        ({"config": 3}, "give a dict, or the path"),
    ],
    ids=str,
)
def test_refused_in_the_constructor(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        DeepSpeedStrategy(**keywords)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "isn't JSON"),
        ('{"steps_per_print": 1, "steps_per_print": 2}', "twice"),
        ("[1]", "holds a list"),
        (b"\xff\xfe", "UTF-8"),
        (None, "can't be read"),
    ],
    ids=str,
)
def test_a_file_that_is_no_configuration(content: str | bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=said):
        DeepSpeedStrategy(config=str(path))


@pytest.mark.parametrize("path", ["/proc", "/sys"])
def test_a_path_that_cannot_be_written_to(path: str) -> None:
    if not Path(path).is_dir():
        pytest.skip(f"there is no {path}")
    with pytest.raises(ConfigError, match="can't be written to"):
        DeepSpeedStrategy(stage=3, remote_device="nvme", nvme_path=path)


@pytest.mark.parametrize(
    ("batch", "world_size", "said"),
    [
        ({}, 3, "train_batch_size=16, which 3 ranks don't make"),
        ({"train_micro_batch_size_per_gpu": 4}, 3, "micro-batches of 4, 3 ranks"),
        (
            {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1},
            2,
            "1 micro-batches a step",
        ),
        ({"gradient_accumulation_steps": "auto"}, 4, ""),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, 2, ""),
    ],
    ids=str,
)
def test_batch_sizes_that_come_out_nowhere(batch: dict[str, Any], world_size: int, said: str) -> None:
    options = {"config": {"train_batch_size": 16, **batch}}
    config = RunConfig("deepspeed", options, accelerator="cpu", devices=world_size)
    if not said:
        assemble(config)
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        assemble(config)


@pytest.mark.parametrize(
    ("options", "precision", "error", "said"),
    [
        ({"stage": 2}, "16-mixed", PrecisionError, "float16 on a CPU"),
        ({"stage": 0}, "16-mixed", PrecisionError, "doesn't work with this strategy"),
        ({"stage": 3}, "16-mixed", PrecisionError, "doesn't work with this strategy"),
        ({"stage": 2}, "64-true", PrecisionError, "doesn't work with this strategy"),
        ({"config": {"optimizer": {"type": "Lamb"}}}, "32-true", ConfigError, "CUDA devices alone"),
    ],
)
def test_refused_before_launch(options: dict[str, Any], precision: str, error: type, said: str) -> None:
    config = RunConfig("deepspeed", options, accelerator="cpu", devices=2, precision=precision)
    with pytest.raises(error, match=said):
        assemble(config)


@pytest.mark.parametrize("feature", ["several_optimizers", "closure", "manual_backward", "value_clipping"])
def test_what_it_cannot_do_names_what_can(feature: str) -> None:
    run = assemble(RunConfig("deepspeed", accelerator="cpu", devices=2))
    with pytest.raises(CombinationError, match="ddp"):
        run.require([feature])


def test_only_stage_3_has_collective_forwards() -> None:
    features = {
        stage: assemble(RunConfig("deepspeed", {"stage": stage}, "cpu", 1)).capabilities.features
        for stage in range(4)
    }
    assert [stage for stage in range(4) if "collective_forward" in features[stage]] == [3]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
def test_what_torch_compile_returned_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match=re.escape("'1' is made by torch.compile")):
        refusals.check_compiled(net)
    net[1] = nn.Linear(2, 2)
    net.compile()
    refusals.check_compiled(net)


def test_the_command_line_ends_with_one_sentence(tmp_path: Path) -> None:
    module = tmp_path / "tiny.py"
    module.write_text("import stratagem\n\nclass Tiny(stratagem.Module):\n    pass\n")
    command = [sys.executable, "-m", "stratagem", "fit", f"{module}:Tiny", "--strategy", "deepspeed_stage_2"]
    command += ["--accelerator", "cpu", "--devices", "2", "--set", f"strategy.config={tmp_path}/none.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "none.json" in done.stderr
    assert "can't be read" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["tiny.py"]


def test_a_folder_that_is_no_engine_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="isn't a folder"):
        DeepSpeedStrategy(engine_checkpoint=tmp_path / "none")


def test_numbers_of_elements_may_be_written_as_powers_of_ten() -> None:
    zero = tree(allgather_bucket_size=5e8, reduce_bucket_size=2e8)["zero_optimization"]
    assert (zero["allgather_bucket_size"], zero["reduce_bucket_size"]) == (500_000_000, 200_000_000)
    assert type(zero["allgather_bucket_size"]) is int
    for wrong in (1.5, 0, float("inf"), float("nan"), True):
        with pytest.raises(ConfigError, match="is no number of elements"):
            tree(reduce_bucket_size=wrong)


@pytest.mark.parametrize(
    "config", [{"zero_optimization": {"stage": 2}}, "deepspeed.json", Path("deepspeed.json")]
)
def test_a_configuration_given_positionally_is_refused_by_name(config: Any) -> None:
    with pytest.raises(ConfigError, match="the configuration as config="):
        DeepSpeedStrategy(config)


def test_the_former_variable_of_the_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PL_DEEPSPEED_CONFIG_PATH", "a.json")
    with pytest.raises(ConfigError, match=r"=a\.json is now called STRATAGEM_DEEPSPEED_CONFIG: set that one"):
        DeepSpeedStrategy()
    (tmp_path / "b.json").write_text("{}")
    monkeypatch.setenv("STRATAGEM_DEEPSPEED_CONFIG", str(tmp_path / "b.json"))
    DeepSpeedStrategy()


REFERENCE = {
    "zero_allow_untested_optimizer": True,
    "scheduler": {
        "type": "WarmupLR",
        "params": {
            "last_batch_iteration": -1,
            "warmup_min_lr": 0,
            "warmup_max_lr": 3e-5,
            "warmup_num_steps": 100,
        },
    },
    "zero_optimization": {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "allgather_bucket_size": 2e8,
        "reduce_bucket_size": 2e8,
    },
}
"""The example of the reference, without what is gone."""


def test_the_example_of_the_reference_is_taken_but_for_what_is_gone() -> None:
    assert tree(config=REFERENCE)["zero_optimization"]["allgather_bucket_size"] == 2e8
    offloading = {**REFERENCE["zero_optimization"], "cpu_offload": True}
    with pytest.raises(ConfigError, match=r"cpu_offload.*offload_optimizer"):
        tree(config={**REFERENCE, "zero_optimization": offloading})
    with pytest.raises(ConfigError, match="OneBitAdam"):
        tree(config={**REFERENCE, "optimizer": {"type": "OneBitAdam", "params": {"lr": 3e-5}}})
