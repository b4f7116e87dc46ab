"""The components of stratagem-trainer: commands that train and evaluate, and loggers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the commands by their import paths. Only stratagem-cli calls this hook."""
    for name in ("fit", "validate", "test", "predict"):
        cli.add_lazy(name, f"stratagem_trainer.commands.stages:{name}")
    for name in ("example", "demo"):
        cli.add_lazy(name, f"stratagem_trainer.commands.examples:{name}")


_LOGGERS = (
    ("csv", "csv:CSVLogger", "one CSV file in the run's folder", "", ""),
    (
        "tensorboard",
        "tensorboard:TensorBoardLogger",
        "event files for TensorBoard",
        "tensorboard",
        "tensorboard",
    ),
)


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the loggers that `Trainer(logger="…")` and `--logger` accept by name."""
    return [
        Component(
            "logger",
            name,
            f"stratagem_trainer.loggers.{target}",
            summary,
            requires=(library,) if library else (),
            install_hint=f'pip install "stratagem-trainer[{extra}]"' if extra else "",
        )
        for name, target, summary, library, extra in _LOGGERS
    ]
