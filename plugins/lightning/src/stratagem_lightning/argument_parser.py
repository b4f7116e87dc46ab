"""`LightningArgumentParser`: a parser to which whole classes can be added."""

from __future__ import annotations

from typing import Any

import jsonargparse
import torch
from jsonargparse import ArgumentParser
from stratagem_trainer.callbacks import Callback

_CONFIG_FILE: Any = vars(jsonargparse)["ActionConfigFile"]  # it is public, but jsonargparse's types lack it


class LightningArgumentParser(ArgumentParser):
    """jsonargparse's parser, with methods to add whole classes, callbacks, optimizers and schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_argument("-c", "--config", action=_CONFIG_FILE, help="A configuration in YAML.")
        self.optimizers_added: dict[str, Any] = {}
        self.callback_keys: list[str] = []
        """Keys under which callbacks were added. They are passed to the trainer."""

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> None:
        """Add the arguments of a class below `nested_key`. In `subclass_mode` the class is chosen by its path.

        A callback is passed to the trainer.
        """
        if isinstance(lightning_class, type) and issubclass(lightning_class, Callback):
            self.callback_keys.append(nested_key)
        if subclass_mode:
            self.add_subclass_arguments(lightning_class, nested_key, fail_untyped=False, required=required)
        else:
            self.add_class_arguments(lightning_class, nested_key, fail_untyped=False)

    def add_optimizer_args(
        self,
        optimizer_class: Any = (torch.optim.Optimizer,),
        nested_key: str = "optimizer",
        link_to: str = "AUTOMATIC",
    ) -> None:
        """Add an option for an optimizer. It goes to `link_to`, or to the module's `configure_optimizers`."""
        self._add_made_later(optimizer_class, nested_key, "params", link_to)

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: Any = (torch.optim.lr_scheduler.LRScheduler,),
        nested_key: str = "lr_scheduler",
        link_to: str = "AUTOMATIC",
    ) -> None:
        """Add an option for a scheduler of that optimizer."""
        self._add_made_later(lr_scheduler_class, nested_key, "optimizer", link_to)

    def _add_made_later(self, kinds: Any, nested_key: str, skip: str, link_to: str) -> None:
        is_any = isinstance(kinds, tuple) or kinds in (
            torch.optim.Optimizer,
            torch.optim.lr_scheduler.LRScheduler,
        )
        options: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {skip}}
        if is_any:
            self.add_subclass_arguments(kinds, nested_key, required=False, **options)
        else:
            self.add_class_arguments(kinds, nested_key, sub_configs=True, **options)
        self.optimizers_added[nested_key] = (kinds, link_to)
