"""`SavedConfig`: write the resolved configuration of a fit to its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stratagem_cli.chosen import strategy_component
from stratagem_cli.settings import DATA_CLASS, SELECTION, Settings
from stratagem_cli.typed import defaults_of, plain

from stratagem import RunConfig
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.commands.module_spec import DataSpec, ModuleSpec
from stratagem_trainer.saving.find_checkpoint import AUTO

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

FILE_NAME = "config.yaml"

_OF_THIS_RUN = ("run_dir", "node_rank")
"""Not in the file: a repeated run gets a new folder, and its nodes may have other ranks."""


@dataclass(frozen=True)
class Resolved:
    """All settings with which a fit was started, including defaults."""

    spec: ModuleSpec
    data: DataSpec | None
    settings: Settings
    """The settings that the user gave."""
    strategy: Mapping[str, Any]
    """The strategy's settings with their types, without defaults."""
    trainer: Mapping[str, Any]
    """The trainer's settings with their types, including defaults."""

    def as_yaml(self) -> str:
        """Return a configuration file that repeats the run. Imports the target and the strategy."""
        import yaml

        given = self.settings
        selection = {f.name: getattr(RunConfig(), f.name) for f in fields(RunConfig)}
        selection = {**selection, **given.selection}
        content: dict[str, Any] = {"target": str(self.spec.target)}
        content["strategy"] = {"name": selection["strategy"], **self._strategy(selection)}
        content.update((key, _plain(selection[key])) for key in SELECTION if key not in _OF_THIS_RUN)
        name, options = selection["checkpoint"], {k: plain(v) for k, v in given.checkpoint.items()}
        content["checkpoint"] = {"name": name, **_storable(options, {})} if options else name
        if given.ckpt_path not in (
            None,
            AUTO,
        ):  # "auto" refers to the newest checkpoint in this run's own folder
            content["ckpt_path"] = str(given.ckpt_path)
        content["model"] = _storable(self.spec.resolved(), given.model)
        if self.data is not None:
            settings = _storable(self.data.resolved(), given.data)
            content["data"] = {DATA_CLASS: str(self.data.target), **settings}
        content["trainer"] = _storable(self.trainer, given.trainer)
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        return text

    def _strategy(self, selection: Mapping[str, Any]) -> dict[str, Any]:
        given = _storable(self.strategy, self.settings.strategy)
        found = strategy_component(selection)
        if found is None:
            return given
        defaults = {k: v for k, v in defaults_of(found.load()).items() if v is not None}
        return {**_storable({**defaults, **found.options}, {}), **given}


class SavedConfig(Callback):
    """Write `config.yaml` on rank 0 when a fit starts. `stratagem fit --config` repeats the run with it."""

    order = -100

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        """Write the file atomically."""
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


def _storable(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that YAML can hold.

    Args:
        settings: settings with their types.
        given: settings as the user gave them. They are used for types that YAML doesn't have.
    """
    items = {}
    for key, value in settings.items():
        item = _plain(value)
        if item is _NOTHING and key in given:
            item = _plain(plain(given[key]))
        if item is not _NOTHING:
            items[key] = item
    return items


def _plain(value: Any) -> Any:
    """Return `value` in YAML's types; `_NOTHING` if YAML can't hold it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, timedelta)):
        return str(value)
    if isinstance(value, Mapping):
        items = {str(key): _plain(item) for key, item in value.items()}
        return _NOTHING if _NOTHING in items.values() else items
    if isinstance(value, (list, tuple)):
        parts = [_plain(item) for item in value]
        return _NOTHING if _NOTHING in parts else parts
    return _NOTHING
