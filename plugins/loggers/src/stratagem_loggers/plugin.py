"""The loggers of stratagem-loggers, which `Trainer(logger="…")` and `--logger` accept by name."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl

_LOGGERS = (
    ("wandb", "wandb:WandbLogger", "Weights & Biases", "wandb"),
    ("mlflow", "mlflow:MLFlowLogger", "MLflow, in a folder or on a server", "mlflow"),
    ("comet", "comet:CometLogger", "Comet", "comet_ml"),
    ("trackio", "trackio:TrackioLogger", "trackio, in a folder, a Space or on a server", "trackio"),
    ("aim", "aim:AimLogger", "Aim, in a folder or on a server", "aim"),
)


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Describe the loggers. Each needs the library that its extra installs."""
    return [
        Component(
            "logger",
            name,
            f"stratagem_loggers.{target}",
            summary,
            requires=(library,),
            install_hint=f'pip install "stratagem-loggers[{name}]"',
        )
        for name, target, summary, library in _LOGGERS
    ]
