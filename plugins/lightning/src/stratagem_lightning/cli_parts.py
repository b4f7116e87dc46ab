"""The parts of `LightningCLI` that write the configuration, and that create objects from class paths."""

from __future__ import annotations

import os
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from stratagem_trainer.callbacks import Callback

from stratagem.errors import ConfigError


class SaveConfigCallback(Callback):
    """Writes the run's configuration next to its metrics, on rank 0."""

    def __init__(
        self,
        parser: ArgumentParser,
        config: Namespace,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        if multifile:
            raise ConfigError("SaveConfigCallback(multifile=True) isn't here: the configuration is one file")
        self.parser, self.config = parser, config
        self.text = parser.dump(config, skip_none=False)
        self.config_filename, self.overwrite = config_filename, overwrite
        self.save_to_log_dir = save_to_log_dir

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Save the configuration elsewhere, too. For subclasses; called on rank 0 before the file is written."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "parser": None}  # it can't be sent to workers

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Write the file.

        Raises:
            ConfigError: the file of another run exists.
        """
        if not trainer.is_global_zero:
            return
        self.save_config(trainer, module, stage)
        if trainer.log_dir is None or not self.save_to_log_dir:
            return
        path = os.path.join(trainer.log_dir, self.config_filename)
        if os.path.exists(path) and not self.overwrite:
            with open(path) as file:
                if file.read() != self.text:
                    raise ConfigError(
                        f"{path} is another run's configuration: choose another folder, or pass "
                        'save_config_kwargs={"overwrite": True}'
                    )
        os.makedirs(trainer.log_dir, exist_ok=True)
        with open(path, "w") as file:
            file.write(self.text)


def made_of(value: Any, kinds: Any, first: Any) -> Any:
    """Create an object from what the parser returned: a class path with arguments, or only arguments."""
    if "class_path" in value:
        module, _, name = value["class_path"].rpartition(".")
        return getattr(__import__(module, fromlist=[name]), name)(first, **(value.get("init_args") or {}))
    return kinds(first, **value)
