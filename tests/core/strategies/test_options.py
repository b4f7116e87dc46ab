from __future__ import annotations

import inspect

import pytest

from stratagem import ConfigError, ProcessGroupStrategy
from stratagem.sdk.options import ProcessGroupOptions, StrategyOptions, split_options


def test_the_base_keeps_what_it_is_given() -> None:
    made = ProcessGroupStrategy(
        accelerator="cpu", parallel_devices=(), cluster_environment="single", checkpoint_io="x",
        precision_plugin="y", process_group_backend="gloo", timeout_s=7, start_method="fork",
    )  # fmt: skip
    assert (made.accelerator, made.parallel_devices, made.cluster_environment) == ("cpu", (), "single")
    assert (made.checkpoint_io, made.precision_plugin, made.process_group_backend) == ("x", "y", "gloo")
    assert (made.timeout.total_seconds(), made.start_method) == (7, "fork")
    assert ProcessGroupStrategy().start_method == "forkserver"


class Typed(ProcessGroupStrategy):
    """As one whose author imports the record for type checkers alone."""

    def __init__(self, period: int = 8, **options: Unpack[Unseen]) -> None:  # noqa: F821
        super().__init__(**options)


class Untyped(ProcessGroupStrategy):
    def __init__(self, period: int = 8, **further: object) -> None:
        super().__init__(**further)


def test_constructors_without_the_record_show_what_their_base_takes() -> None:
    base = list(inspect.signature(ProcessGroupStrategy).parameters)
    assert list(inspect.signature(Typed).parameters) == ["period", *base]
    assert list(inspect.signature(Untyped).parameters) == ["period", *base, "further"]
    with pytest.raises(ConfigError, match="Untyped has no setting 'perod'; nearest: period"):
        Untyped(perod=3)


def test_split_options() -> None:
    given = {"timeout_s": 3, "stage": 2, "accelerator": "cpu"}
    shared = ({"timeout_s": 3, "accelerator": "cpu"}, {"stage": 2})
    assert split_options(ProcessGroupOptions, given) == shared
    assert split_options(StrategyOptions, given) == ({"accelerator": "cpu"}, {"timeout_s": 3, "stage": 2})
