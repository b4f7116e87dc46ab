"""`LightningCLI`: builds a command line from the signatures of a module, its data and the trainer.

jsonargparse parses options and configuration files. A class path imports the package that it names, so only paths in
allowed packages are accepted: docs/coming-from-lightning.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jsonargparse import set_parsing_settings
from stratagem_trainer.stage.seeding import seed_everything

from stratagem.errors import ConfigError
from stratagem_lightning.argument_parser import LightningArgumentParser
from stratagem_lightning.class_paths import in_arguments, read_configurations
from stratagem_lightning.cli_parts import SaveConfigCallback, made_of
from stratagem_lightning.datamodule import LightningDataModule
from stratagem_lightning.module import LightningModule
from stratagem_lightning.trainer import Trainer

ALLOWED_VARIABLE = "STRATAGEM_CLASS_PATHS"
"""Packages whose classes configurations may name, separated by commas; the program's own packages always may be."""
SUBCOMMANDS = {
    "fit": "train_dataloaders",
    "validate": "dataloaders",
    "test": "dataloaders",
    "predict": "dataloaders",
}
_ALWAYS_ALLOWED = ("stratagem", "stratagem_lightning", "stratagem_trainer", "torch", "torchmetrics")


class LightningCLI:
    """Builds module, data and trainer from the command line, and runs a subcommand of the trainer.

    Args:
        model_class: a module's class, a function that returns a module, or None: `--model` then names a class.
        datamodule_class: the same for data. None without `subclass_mode_data`: no data module, or `--data` names one.
        save_config_callback: class of the callback that writes the configuration; None writes none.
        save_config_kwargs: arguments of that class.
        trainer_class: the trainer's class, or a function that returns a trainer.
        trainer_defaults: values of arguments that aren't given. Its `callbacks` are added to the given ones.
        seed_everything_default: default of `--seed_everything`. True chooses a random seed, False doesn't seed.
        parser_kwargs: arguments of the parser, or a dict from subcommands to arguments.
        parser_class: the parser's class.
        subclass_mode_model: whether `--model` names a subclass of `model_class`.
        subclass_mode_data: the same for data.
        args: a list or mapping of arguments to use instead of `sys.argv`.
        run: whether to add subcommands, and to run the chosen one.
        auto_configure_optimizers: whether to add `--optimizer` and `--lr_scheduler` for modules without
            `configure_optimizers`.
    """

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: Mapping[str, Any] | None = None,
        trainer_class: Callable[..., Any] = Trainer,
        trainer_defaults: Mapping[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: Mapping[str, Any] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: Sequence[str] | Mapping[str, Any] | None = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
    ) -> None:
        self.save_config_callback = save_config_callback
        self.save_config_kwargs = dict(save_config_kwargs or {})
        self.trainer_class, self.trainer_defaults = trainer_class, dict(trainer_defaults or {})
        self.seed_everything_default = seed_everything_default
        self.parser_class = parser_class
        self.auto_configure_optimizers = auto_configure_optimizers
        self._model_class = model_class if model_class is not None else LightningModule
        self.subclass_mode_model = model_class is None or subclass_mode_model
        self._datamodule_class = datamodule_class if datamodule_class is not None else LightningDataModule
        self.subclass_mode_data = datamodule_class is None or subclass_mode_data
        _allow_class_paths(model_class, datamodule_class, trainer_class)

        self._run = run
        read_configurations()
        self.parser = self.init_parser(**_parser_options(parser_kwargs, None))
        self._subparsers: dict[str, LightningArgumentParser] = {}
        if run:
            self._add_subcommands(parser_kwargs)
        else:
            self._add_arguments(self.parser)
        self.parse_arguments(self.parser, args)
        self.subcommand: str | None = self.config["subcommand"] if run else None
        self._seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        if self.subcommand is not None:
            self._run_subcommand(self.subcommand)

    # For subclasses to override -------------------------------------------------------------------------

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return a parser that has none of the program's arguments yet."""
        return self.parser_class(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the program's own arguments, or link arguments."""

    def before_instantiate_classes(self) -> None:
        """Called before module, data and trainer are created."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return the trainer, created from the configuration and `kwargs`."""
        given = dict(self._of("trainer"))
        given.update(kwargs)
        return self._make_trainer(given)

    @staticmethod
    def configure_optimizers(module: Any, optimizer: Any, lr_scheduler: Any = None) -> Any:
        """Return the value of the module's `configure_optimizers` if `--optimizer` was given."""
        if lr_scheduler is None:
            return optimizer
        return [optimizer], [lr_scheduler]

    # Parsing ----------------------------------------------------------------------------------------------

    def _add_arguments(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="Seeds all generators.",
        )
        parser.add_class_arguments(self.trainer_class, "trainer", fail_untyped=False, instantiate=False)
        parser.set_defaults(
            {f"trainer.{key}": v for key, v in self.trainer_defaults.items() if key != "callbacks"}
        )
        parser.add_lightning_class_args(self._model_class, "model", self.subclass_mode_model)
        parser.add_lightning_class_args(
            self._datamodule_class, "data", self.subclass_mode_data, required=not self.subclass_mode_data
        )
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            if not any(
                link == "AUTOMATIC" and _is(kinds, torch.optim.Optimizer) for kinds, link in _added(parser)
            ):
                parser.add_optimizer_args()
            if not any(
                link == "AUTOMATIC" and not _is(kinds, torch.optim.Optimizer)
                for kinds, link in _added(parser)
            ):
                parser.add_lr_scheduler_args()

    def _add_subcommands(self, parser_kwargs: Mapping[str, Any] | None) -> None:
        subcommands = self.parser.add_subcommands()
        for name, loaders in SUBCOMMANDS.items():
            parser = self.init_parser(**_parser_options(parser_kwargs, name))
            self._add_arguments(parser)
            skip: set[str | int] = {"model", "datamodule", loaders, "val_dataloaders"}
            parser.add_method_arguments(self._trainer_type(), name, skip=skip, fail_untyped=False)
            subcommands.add_subcommand(name, parser, help=f"Run `Trainer.{name}`.")
            self._subparsers[name] = parser

    def _trainer_type(self) -> type:
        return self.trainer_class if isinstance(self.trainer_class, type) else Trainer

    def parse_arguments(
        self, parser: LightningArgumentParser, args: Sequence[str] | Mapping[str, Any] | None
    ) -> None:
        """Parse `args`, or the program's arguments, into `self.config`."""
        if isinstance(args, Mapping):
            self.config = parser.parse_object(dict(args))
            return
        given = list(sys.argv[1:] if args is None else args)
        self.config = parser.parse_args(in_arguments(given))

    def _of(self, key: str) -> Any:
        return self._made.get(key) or {}

    def _seed(self) -> None:
        settings = self.config[self.subcommand] if self.subcommand else self.config
        seed = settings["seed_everything"]
        if seed is False:
            return
        settings["seed_everything"] = seed_everything(None if seed is True else seed, workers=True)

    # Creating objects -------------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Create the trainer, the module and the data."""
        made = self.parser.instantiate_classes(self.config)
        self.config_init = made
        self._made = made[self.subcommand] if self.subcommand else made
        self.model, self.datamodule = self._made["model"], self._made.get("data")
        self._give_optimizers()
        self.trainer = self.instantiate_trainer()

    def _make_trainer(self, given: dict[str, Any]) -> Any:
        parser = self._subparsers.get(self.subcommand or "", self.parser)
        callbacks = [
            *_listed(given.get("callbacks")),
            *(self._made[key] for key in parser.callback_keys),
            *_listed(self.trainer_defaults.get("callbacks")),
        ]
        if self.save_config_callback is not None and not given.get("fast_dev_run"):
            settings = self.config[self.subcommand] if self.subcommand else self.config
            callbacks.append(self.save_config_callback(parser, settings, **self.save_config_kwargs))
        given["callbacks"] = callbacks
        return self.trainer_class(**given)

    def _give_optimizers(self) -> None:
        parser = self._subparsers.get(self.subcommand or "", self.parser)
        automatic = {
            key: self._made.get(key)
            for key, (_, link) in parser.optimizers_added.items()
            if link == "AUTOMATIC"
        }
        for key, (kinds, link) in parser.optimizers_added.items():
            if link != "AUTOMATIC":
                owner, _, attribute = link.rpartition(".")
                target = self.model if owner.startswith("model") else self.datamodule
                setattr(target, attribute, partial(made_of, self._made.get(key), kinds))
        given = {key: value for key, value in automatic.items() if value is not None}
        if not given:
            return
        specs = {
            "optimizer" if _is(parser.optimizers_added[key][0], torch.optim.Optimizer) else "lr_scheduler": (
                value,
                parser.optimizers_added[key][0],
            )
            for key, value in given.items()
        }
        if "optimizer" not in specs:
            raise ConfigError("--lr_scheduler was given without --optimizer: give both")
        self.model.configure_optimizers = partial(_configure, type(self), self.model, specs)

    # Running ----------------------------------------------------------------------------------------------

    def _run_subcommand(self, name: str) -> None:
        for when in (f"before_{name}", name, f"after_{name}"):
            if when == name:
                function = getattr(self.trainer, name)
                keys = {
                    action
                    for action in ("ckpt_path", "verbose", "return_predictions")
                    if action in self._made
                }
                function(self.model, datamodule=self.datamodule, **{key: self._made[key] for key in keys})
            elif hasattr(self, when):
                getattr(self, when)()


def _configure(owner: type[LightningCLI], module: Any, specs: dict[str, Any]) -> Any:
    value, kinds = specs["optimizer"]
    optimizer, scheduler = made_of(value, kinds, module.parameters()), None
    if "lr_scheduler" in specs:
        value, kinds = specs["lr_scheduler"]
        scheduler = made_of(value, kinds, optimizer)
    return owner.configure_optimizers(module, optimizer, scheduler)


def _allow_class_paths(*owners: Any) -> None:
    """Allow class paths in the packages of these objects, torch, this package, and the variable's packages."""
    packages = {
        getattr(owner, "__module__", "torch").partition(".")[0] for owner in owners if owner is not None
    }
    more = [each.strip() for each in os.environ.get(ALLOWED_VARIABLE, "").split(",") if each.strip()]
    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=sorted({*packages, *_ALWAYS_ALLOWED, "__main__", *more}),
    )


def _parser_options(options: Mapping[str, Any] | None, subcommand: str | None) -> dict[str, Any]:
    """Return the options of one parser, which are given for all parsers or by subcommand."""
    by_command = {key: value for key, value in (options or {}).items() if key in SUBCOMMANDS}
    return dict(by_command.get(subcommand or "", {})) if by_command else dict(options or {})


def _added(parser: LightningArgumentParser) -> list[Any]:
    return list(parser.optimizers_added.values())


def _is(kinds: Any, base: type) -> bool:
    return all(issubclass(kind, base) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, Sequence) else [value]


__all__ = ["LightningArgumentParser", "LightningCLI", "SaveConfigCallback"]
