"""`SavedConfig`: writes the resolved configuration of a fit into its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stratagem.callbacks.base import Callback
from stratagem.cli.module_spec import ModuleSpec
from stratagem.cli.settings import Settings
from stratagem.cli.typed import defaults_of, plain
from stratagem.config import RunConfig
from stratagem.plugins import load_catalogue

if TYPE_CHECKING:
    from stratagem.module import Module
    from stratagem.trainer.trainer import Trainer

FILE_NAME = "config.yaml"

_OF_THIS_RUN = ("run_dir", "node_rank")
"""Left out of the file: a repeated run gets a folder of its own, and the nodes may change places."""


@dataclass(frozen=True)
class Resolved:
    """Everything that a fit was started with, defaults included."""

    spec: ModuleSpec
    settings: Settings
    trainer: Mapping[str, Any]
    """The trainer's settings, defaults included."""

    def as_yaml(self) -> str:
        """The configuration file that repeats the run. Imports the target and the strategy."""
        import yaml

        selection = {f.name: getattr(RunConfig(), f.name) for f in fields(RunConfig)}
        selection = {**selection, **self.settings.selection}
        content = {
            "target": str(self.spec.target),
            "strategy": {"name": selection["strategy"], **self._strategy(selection)},
            **{
                k: v for k, v in selection.items() if k not in ("strategy", "strategy_options", *_OF_THIS_RUN)
            },
            **({"ckpt_path": self.settings.ckpt_path} if self.settings.ckpt_path else {}),
            "model": self.spec.resolved(),
            "trainer": {**self.trainer, **{k: plain(v) for k, v in self.settings.trainer.items()}},
        }
        text: str = yaml.safe_dump(_storable(content), sort_keys=False, allow_unicode=True)
        return text

    def _strategy(self, selection: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: plain(value) for key, value in self.settings.strategy.items()}
        if selection["strategy"] == "auto":
            return given
        catalogue = load_catalogue(selection["only_plugins"], selection["without_plugins"])
        found = catalogue.find("strategy", selection["strategy"])
        defaults = {k: v for k, v in defaults_of(found.load()).items() if v is not None}
        return {**defaults, **found.options, **given}


class SavedConfig(Callback):
    """Write `config.yaml` when a fit starts, on rank 0: `stratagem fit --config` repeats the run with it."""

    order = -100

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved

    def on_start(self, trainer: Trainer, module: Module, stage: str) -> None:
        """Write the file, whole or not at all."""
        if stage != "fit" or not trainer.is_main or trainer.run_dir is None:
            return
        os.makedirs(trainer.run_dir, exist_ok=True)
        path = os.path.join(trainer.run_dir, FILE_NAME)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write("# stratagem fit --config with this file repeats the run.\n")
            file.write(self.resolved.as_yaml())
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)


_NOTHING = object()


def _storable(value: Any) -> Any:
    """Return `value` as YAML's own types; what has none is left out of its mapping or list."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, Mapping):
        items = {str(key): _storable(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _NOTHING}
    if isinstance(value, (list, tuple)):
        return [item for item in map(_storable, value) if item is not _NOTHING]
    return _NOTHING
