"""Configuration files, flags and --set are merged, and checked key by key."""

from datetime import timedelta

import pytest
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_cli.settings import checkpoint_settings, merged, strategy_settings, trainer_settings
from stratagem_cli.typed import Text, defaults_of, plain, typed

from stratagem.errors import ConfigError


class Strategy:
    def __init__(self, timeout_s: float | None = None, timeout: timedelta | None = None, **kwargs: object):
        self.kwargs = kwargs


class Trainer:
    def __init__(self, max_epochs: "int | None" = None, log_every_n_steps: int = 50, bar: bool = True):
        pass


def trained(settings):
    return trainer_settings(settings, Trainer, defaults_of(Trainer))


def test_what_comes_later_wins_key_by_key(folder):
    (folder / "run.yaml").write_text(
        "target: net.py:Net\nstrategy: {name: ddp, timeout_s: 5}\ndevices: [0, 1]\nprecision: 16\n"
        "model: {hidden: 1, lr: 2}\ntrainer: {max_epochs: 3, log_every_n_steps: 7}\n"
    )
    flags = {"devices": "2", "trainer": {"max_epochs": 4}}
    settings = merged(
        ["run.yaml"], flags, ["model.hidden=5", "trainer.log_every_n_steps=8", "model.hidden=6"]
    )
    assert settings.target == "net.py:Net"
    assert settings.selection == {"devices": "2", "precision": "16", "strategy": "ddp"}
    assert settings.model == {"hidden": Text("6"), "lr": 2}
    assert trained(settings) == {"max_epochs": 4, "log_every_n_steps": 8}
    assert settings.strategy == {"timeout_s": 5}


def test_another_strategy_drops_the_options_of_the_first(folder):
    (folder / "run.yaml").write_text("strategy: {name: ddp, timeout_s: 5}\n")
    assert merged(["run.yaml"], {"strategy": {"name": "single"}}).strategy == {}
    assert merged(["run.yaml"], {"strategy": {"name": "ddp"}}).strategy == {"timeout_s": 5}
    assert merged(["run.yaml"], {}, ["strategy=other", "strategy.x=1"]).strategy == {"x": "1"}


def test_a_checkpointers_settings(folder):
    (folder / "run.yaml").write_text("checkpoint: {name: directory, async: false}\n")
    settings = merged(["run.yaml"], {"checkpoint": {"name": "directory"}}, ["checkpoint.async=true"])
    assert settings.selection == {"checkpoint": "directory"}
    assert checkpoint_settings(settings, DirectoryCheckpointer) == {"async": True}
    assert merged(["run.yaml"], {}, ["checkpoint=other"]).checkpoint == {}
    assert merged((), {}, ["checkpoint=other"]).selection == {"checkpoint": "other"}
    assert checkpoint_settings(merged((), {}, ["checkpoint.x=1"]), None) == {"x": 1}
    with pytest.raises(ConfigError, match=r"^checkpoint.async='maybe' is of the wrong type: .* wants bool"):
        checkpoint_settings(merged((), {}, ["checkpoint.async=maybe"]), DirectoryCheckpointer)
    with pytest.raises(ConfigError, match=r"no setting 'checkpoint.asynk'; nearest: async$"):
        checkpoint_settings(merged((), {}, ["checkpoint.asynk=1"]), DirectoryCheckpointer)
    with pytest.raises(ConfigError, match=r"checkpoint=3 is no name: give one as directory"):
        merged((), {}, ["checkpoint.name=3"])


def test_top_level_values_are_typed():
    settings = merged(
        (), {}, ["devices=[0, 2]", "num_nodes=2", "seed=null", "only_plugins=[a, b]", "precision=16"]
    )
    assert settings.selection == {
        "devices": [0, 2],
        "num_nodes": 2,
        "seed": None,
        "only_plugins": ("a", "b"),
        "precision": "16",
    }


def test_strategy_options_follow_the_signature_and_what_it_passes_on():
    settings = merged(
        (), {}, ["strategy.timeout_s=60", "strategy.timeout=0:00:30", "strategy.find_unused=true"]
    )
    assert strategy_settings(settings, Strategy) == {
        "timeout_s": 60.0,
        "timeout": timedelta(seconds=30),
        "find_unused": True,
    }
    assert strategy_settings(settings, None)["timeout_s"] == 60


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["modle.hidden=3"], "--set has no setting 'modle'; nearest: model"),
        (["model"], "--set 'model' can't be understood: write it section.key=value"),
        (["model=3"], "--set has model=3: model is a section"),
        (["model.=3"], "can't be understood"),
        (["devise=3"], "--set has no setting 'devise'; nearest: devices"),
        (["num_nodes=two"], "num_nodes='two' is not a number of machines"),
        (["gpus=2"], "gpus=2 is now called accelerator='cuda', devices=2"),
        (["target=[a]"], None),
        (["strategy_options=3"], "has no setting 'strategy_options'"),
    ],
)
def test_sets_that_are_refused(sets, message):
    if message is None:
        assert merged((), {}, sets).target == "[a]"
        return
    with pytest.raises(ConfigError) as caught:
        merged((), {}, sets)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ["trainer.max_epoch=3"],
            "the configuration has no setting 'trainer.max_epoch'; nearest: max_epochs",
        ),
        (
            ["trainer.max_epochs=few"],
            "trainer.max_epochs='few' is of the wrong type: Trainer wants int | None",
        ),
        (["trainer.devices=2"], "'trainer.devices' isn't in a section: write it 'devices', at the top level"),
        (["trainer.replace_sampler_ddp=false"], "is now called use_distributed_sampler=False"),
    ],
)
def test_trainer_settings_that_are_refused(sets, message):
    with pytest.raises(ConfigError) as caught:
        trained(merged((), {}, sets))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "isn't YAML"),
        ("- a\n", "holds a list; it must hold keys and values"),
        ("modle: {}\n", "configuration 'run.yaml' has no setting 'modle'; nearest: model"),
        ("model: 3\n", "model is a section"),
        ("target: 3\n", "target=3 is no text"),
        ("strategy: {name: 3}\n", "strategy=3 is no name"),
        ("num_nodes: 1.5\n", "num_nodes='1.5' is not a number of machines"),
        ("strategy: !!python/object/apply:os.getcwd []\n", "isn't YAML"),
    ],
)
def test_files_that_are_refused(folder, content, message):
    (folder / "run.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        merged(["run.yaml"])
    assert message in str(caught.value)


def test_what_yaml_once_took_for_minutes_is_what_is_written(folder):
    (folder / "run.yaml").write_text(
        "num_nodes: 1:4\nstrategy: {name: ddp, timeout: 0:01:30}\nmodel: {ratio: 1:2.5, size: 0x10}\n"
    )
    settings = merged(["run.yaml"], {}, ["model.map=2:30"])
    assert settings.selection["num_nodes"] == "1:4"
    assert strategy_settings(settings, Strategy)["timeout"] == timedelta(seconds=90)
    assert {key: plain(value) for key, value in settings.model.items()} == {
        "ratio": "1:2.5",
        "size": 16,
        "map": "2:30",
    }


def test_a_file_that_isnt_there():
    with pytest.raises(ConfigError, match="can't be read"):
        merged(["none.yaml"])


def test_a_file_may_be_empty(folder):
    (folder / "run.yaml").write_text("# nothing\nmodel:\n")
    assert merged(["run.yaml"]).model == {}


def test_values_equal_to_the_default_need_no_type():
    class Odd:
        def __init__(self, thing: "NotImportable" = None, size: int = 3):  # noqa: F821
            pass

    assert typed(Odd, {"thing": None, "size": 3}, "model") == {"thing": None, "size": 3}


def test_a_default_of_another_type_is_no_pass():
    with pytest.raises(ConfigError, match=r"trainer.bar=1 is of the wrong type: Trainer wants bool"):
        typed(Trainer, {"bar": 1}, "trainer")
