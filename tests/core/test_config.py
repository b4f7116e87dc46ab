"""Settings of a run: kept as they are, or refused by name when they are made."""

import dataclasses
import pickle

import pytest

from stratagem.config import RunConfig, RunOptions
from stratagem.errors import ConfigError

MOST_SEED, MOST = 2**64 - 1, 10**7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("check_replicas_every", 0),
        ("check_replicas_every", 1),
        ("seed", None),
        ("seed", 0),
        ("seed", MOST_SEED),
        ("node_rank", None),
        ("node_rank", 0),
        ("node_rank", MOST),
        ("max_restarts", 0),
        ("max_restarts", MOST),
    ],
)
def test_what_is_possible_is_kept(name, value):
    assert getattr(RunConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *(
            ("check_replicas_every", value, "must be a number of optimizer steps, or 0 for no comparison")
            for value in (-1, 1.5, "5", True, None)
        ),
        *(
            ("seed", value, f"must be a whole number from 0 to {MOST_SEED}")
            for value in (-1, MOST_SEED + 1, 1.0, "1", True)
        ),
        *(
            ("node_rank", value, f"must be a whole number from 0 to {MOST}")
            for value in (-1, MOST + 1, "0", False)
        ),
        *(
            ("max_restarts", value, f"must be a whole number from 0 to {MOST}")
            for value in (-1, MOST + 1, None, True)
        ),
    ],
)
def test_what_is_not_possible_is_refused(name, value, said):
    with pytest.raises(ConfigError) as raised:
        RunConfig(**{name: value})
    assert str(raised.value) == f"{name}={value!r} {said}"


def test_a_configuration_is_fixed_and_reaches_other_processes():
    config = RunConfig("ddp", strategy_options={"timeout_s": 5}, devices=[0, 2], seed=3)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 4


def test_defaults_select_by_themselves_and_are_shared_with_no_other():
    first, second = RunConfig(), RunConfig()
    assert first == second
    assert first.strategy_options == {}
    assert first.strategy_options is not second.strategy_options
    automatic = [first.strategy, first.accelerator, first.devices, first.environment]
    assert automatic == ["auto"] * 4
    assert (first.num_nodes, first.max_restarts, first.check_replicas_every) == (1, 0, 100)
    assert (first.precision, first.checkpoint, first.rdzv_backend) == ("32-true", "directory", "c10d")
    assert (first.extensions, first.only_plugins, first.without_plugins) == ((), (), ())


def test_further_keywords_have_the_names_and_types_of_the_fields():
    types = {field.name: field.type for field in dataclasses.fields(RunConfig)}
    own = ("strategy", "accelerator", "devices", "num_nodes", "precision", "seed", "run_dir", "extensions")
    options = {name: reference.__forward_arg__ for name, reference in RunOptions.__annotations__.items()}
    assert options == {name: text for name, text in types.items() if name not in own}
