"""A script's arguments and the flags of `stratagem run` make one configuration, or contradict each other by name."""

import json
import sys

import pytest

from stratagem.config import RunConfig
from stratagem.errors import ConfigError, UsageError
from stratagem.resolve.run import assemble
from stratagem.runtime.script_flags import CONFIG_VARIABLE, run_config


@pytest.fixture(autouse=True)
def _script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])


@pytest.fixture
def flags(monkeypatch):
    def leave(**given):
        monkeypatch.setenv(CONFIG_VARIABLE, json.dumps(given))

    return leave


def test_without_flags_the_arguments_are_the_configuration(monkeypatch):
    expected = RunConfig("ddp", extensions=("mine",), devices=2)
    assert run_config("Runtime", ["mine"], strategy="ddp", devices=2) == expected
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert run_config("Runtime", ["mine"], strategy="ddp", devices=2) == expected


def test_what_has_another_name_now_is_answered_with_it():
    for given, said in (
        ({"strategy": "fsdp_native"}, "strategy='fsdp_native' is now called strategy='fsdp'"),
        ({"strategy": "tpu_spawn_debug"}, "is now called strategy='tpu_spawn'"),
        ({"accelerator": "ddp"}, "accelerator='ddp' names a strategy: it is now called strategy='ddp'"),
        ({"accelerator": "ddp_cpu"}, "accelerator='ddp_cpu' is now called accelerator='cpu', strategy='ddp'"),
        ({"gpus": 2}, "gpus=2 is now called accelerator='cuda', devices=2"),
    ):
        with pytest.raises(UsageError, match=said):
            assemble(run_config("Runtime", (), **given))
    with pytest.raises(UsageError, match="plugins='ddp_sharded' is now called strategy='ddp_sharded'"):
        assemble(run_config("Runtime", "ddp_sharded"))


def test_no_accelerator_is_any_and_one_plugin_may_stand_alone():
    assert run_config("Runtime", "mine", accelerator=None) == RunConfig(extensions=("mine",))
    assert run_config("Runtime", None) == RunConfig()


@pytest.mark.parametrize("name", ["number", "extensions"])
def test_an_argument_that_there_is_not_is_named(name):
    with pytest.raises(ConfigError) as raised:
        run_config("Trainer", (), **{name: 2}, seed=1)
    said = str(raised.value)
    begins = f"Trainer has no argument {name!r}; it also takes those of RunConfig: accelerator, "
    assert said.startswith(begins)
    assert "extensions" not in said.partition(":")[2]


def test_flags_fill_what_the_script_leaves_open(flags):
    flags(strategy="ddp", seed=4, without_plugins=["mps"], devices=[0, 2])
    made = run_config("Runtime", (), accelerator="cpu")
    assert made == RunConfig("ddp", accelerator="cpu", seed=4, without_plugins=("mps",), devices=[0, 2])


@pytest.mark.parametrize(("mine", "flag"), [(2, 2), ("2", 2), (2, "2"), ("0,2", "0,2")])
def test_a_flag_may_say_the_same_as_the_script(flags, mine, flag):
    flags(devices=flag)
    assert run_config("Runtime", (), devices=mine).devices == flag


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        ({"devices": 3}, {"devices": 2}, "--devices 2 contradicts devices=3 in train.py: leave out one"),
        (
            {"num_nodes": 2},
            {"seed": 1, "num_nodes": 3},
            "--num-nodes 3 contradicts num_nodes=2 in train.py: leave out one",
        ),
        (
            {"strategy": "fsdp"},
            {"strategy": "auto"},
            "--strategy auto contradicts strategy='fsdp' in train.py",
        ),
    ],
)
def test_a_flag_that_contradicts_the_script_is_named(flags, arguments, given, said):
    flags(**given)
    with pytest.raises(ConfigError) as raised:
        run_config("Runtime", (), **arguments)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("text", ["{", "[1]", "null", '{"gpus": 2}', '{"seed": 1, "gpus": 2}', "[" * 100_000])
def test_what_stratagem_run_does_not_leave_is_refused(monkeypatch, text):
    monkeypatch.setenv(CONFIG_VARIABLE, text)
    with pytest.raises(
        ConfigError, match=r"^STRATAGEM_CONFIG is '.*, but `stratagem run` sets .*: unset it$"
    ):
        run_config("Runtime", ())


def test_a_flag_that_is_no_setting_at_all_is_refused_as_an_argument_is(flags):
    flags(seed=-1)
    with pytest.raises(ConfigError, match="seed=-1 must be a whole number"):
        run_config("Runtime", ())
