"""Nothing that a user defines or passes is left uncalled without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_hand import train
from small import Line
from stratagem_trainer.callbacks import EarlyStopping, ModelCheckpoint

import stratagem
from stratagem.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "training_epoch_end",
            "training_epoch_end, which is never called here: it is now called on_train_epoch_end",
        ),
        ("backward", "pass arguments of backward to self.manual_backward"),
        ("on_exception", "on_exception, which is a hook of callbacks only"),
        ("on_train_begin", "on_train_begin, which is never called; nearest: on_train_"),
        ("on_validaton_epoch_end", "nearest: on_validation_epoch_end"),
        ("predict_steps", "predict_steps, which is never called; nearest: predict_step"),
    ],
)
def test_a_modules_hook_that_isnt_one(name: str, words: str, tmp_path: Path) -> None:
    module = type("Module", (stratagem.Module,), {name: lambda self, *_: None})()
    with pytest.raises(ConfigError, match=words):
        train(module, tmp_path)


def test_names_that_only_look_like_hooks_of_others(tmp_path: Path) -> None:
    class Own(Line):
        def online_update(self) -> None: ...

        def training_steps(self) -> None:
            """There is a training_step, so that this is no slip."""

    train(Own(), tmp_path, max_epochs=1)


def test_methods_that_the_program_calls_itself_are_only_warned_of(tmp_path: Path) -> None:
    called: list[str] = []

    class Own(Line):
        def __init__(self) -> None:
            super().__init__()
            self.configure_models()

        def configure_models(self) -> None:
            called.append("configure_models")

        def on_batch(self) -> None:
            called.append("on_batch")

        def on_train_epoch_start(self) -> None:
            self.on_batch()

    class Calls(stratagem.Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            getattr(self, "on_own")()  # noqa: B009 - a name in a string is found, too

        def on_own(self) -> None:
            called.append("on_own")

    with pytest.warns(UserWarning, match="if your program calls it itself") as warned:
        train(Own(), tmp_path, callbacks=Calls(), max_epochs=1)
    said = " ".join(str(each.message) for each in warned)
    assert all(f" defines {name}," in said for name in ("configure_models", "on_batch", "on_own"))
    assert called == ["configure_models", "on_own", "on_batch"]


def test_a_hook_with_other_arguments_than_it_is_called_with(tmp_path: Path) -> None:
    class Own(Line):
        def setup(self) -> None:
            """For the user's own use."""

    with pytest.raises(
        ConfigError, match=r"Own.setup takes \(\), but is called with \(stage\): take these, or rename"
    ):
        train(Own(), tmp_path)

    class Ends(stratagem.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any) -> None:
            """Lacks two."""

    with pytest.raises(ConfigError, match=r"is called with \(trainer, module, outputs, batch, batch_idx\)"):
        stratagem.Trainer(callbacks=Ends())


def test_a_callbacks_hook_that_isnt_one() -> None:
    class Slip(stratagem.Callback):
        def on_train_epoch_begin(self, trainer: Any, module: Any) -> None: ...

    with pytest.raises(
        ConfigError, match="on_train_epoch_begin, which is never called; nearest: on_train_epoch_"
    ):
        stratagem.Trainer(callbacks=Slip())


def test_methods_that_an_object_was_given_are_called(tmp_path: Path) -> None:
    called: list[str] = []
    callback, module = stratagem.Callback(), Line()
    callback.on_train_epoch_end = lambda trainer, module: called.append("callback")
    train(module, tmp_path, callbacks=callback, max_epochs=1)
    assert called == ["callback"]


def test_settings_that_would_be_ignored(tmp_path: Path) -> None:
    for how, words in (
        ({"gradient_clip_algorithm": "value"}, "clips nothing without gradient_clip_val"),
        ({"terminate_on_nan": "yes"}, "terminate_on_nan='yes' must be True or False"),
        ({"logger": [1]}, "logger has a int"),
        (
            {"callbacks": [ModelCheckpoint(monitor="a"), ModelCheckpoint(monitor="a", mode="max")]},
            "two callbacks keep their state",
        ),
        ({"callbacks": [EarlyStopping("a"), EarlyStopping("a")]}, "two callbacks keep their state"),
    ):
        with pytest.raises(ConfigError, match=words):
            stratagem.Trainer(**how)
