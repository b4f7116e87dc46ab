"""`Settings`: what a command is to do, merged from configuration files, flags and `--set`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from keyword import iskeyword
from typing import Any

from stratagem_facade.former_settings import RENAMED, renamed_selection

from stratagem import RunConfig
from stratagem.errors import ConfigError
from stratagem.sdk.selection import node_count
from stratagem_cli.typed import Text, plain, refuse_unknown, typed

SECTIONS = ("model", "data", "strategy", "checkpoint", "trainer")
"""Keys of a configuration whose values are settings by name."""

_PARTS = ("strategy", "checkpoint")
SELECTION = tuple(
    f.name for f in fields(RunConfig) if f.name not in (*_PARTS, *(f"{part}_options" for part in _PARTS))
)
"""Top-level keys that are fields of `RunConfig`; `strategy` and `checkpoint` are a name, or a section with a name."""

DATA_CLASS = "class"
"""Key of the section `data` that names the class; no argument of a constructor can be called so."""

TOP_LEVEL = ("target", *SELECTION, "ckpt_path")

_NAMED = {"strategy": "name", "checkpoint": "name", "data": DATA_CLASS}
"""Sections that may be written as a name alone → the key that it stands for."""

_EXAMPLES = {"strategy": "ddp", "checkpoint": "directory"}

CONFIG = "the configuration"

_AS_IS: Mapping[str, Callable[[Any], Any]] = {
    "precision": lambda value: str(plain(value)),
    "devices": plain,
    "num_nodes": lambda value: node_count(str(value)),
}
"""Top-level keys that types can't check: 16 is a precision's short name, the others have a grammar."""


@dataclass(frozen=True)
class Settings:
    """Merged settings; values are as written in YAML, or `Text` where only `--set` gave them."""

    target: str | None = None
    ckpt_path: str | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `RunConfig`, typed; `strategy` and `checkpoint` are names."""
    strategy: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the strategy's constructor."""
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the checkpointer's constructor."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the module's constructor."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the trainer, apart from the selection."""
    data_class: str | None = None
    """The data module's class, such as "digits.py:DigitsData"."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the data module's constructor."""

    def with_defaults(self, **selection: Any) -> Settings:
        """Fill parts of the selection that weren't set."""
        return replace(self, selection={**selection, **self.selection})


def merged(
    config_files: Sequence[str] = (), flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> Settings:
    """Merge; what comes later wins, key by key.

    Args:
        config_files: paths of YAML files.
        flags: a nested mapping, as a configuration file holds it.
        sets: "key=value" or "section.key=value".

    Raises:
        ConfigError: a file can't be read, or there is an unknown section or key, or a wrong type.
    """
    whole: dict[str, Any] = {}
    for layer in (*map(_from_file, config_files), flags or {}, *map(_from_set, sets)):
        whole = _over(whole, layer)
    sections = {part: dict(whole.pop(part, {})) for part in _PARTS}
    names = {part: _part_name(part, section.pop("name", None)) for part, section in sections.items()}
    data = dict(whole.get("data", {}))
    as_is: dict[str, Any] = {key: convert(whole.pop(key)) for key, convert in _AS_IS.items() if key in whole}
    selection = {key: whole[key] for key in SELECTION if key in whole}
    settings = Settings(
        target=_text(whole, "target"),
        ckpt_path=_text(whole, "ckpt_path"),
        selection={**(typed(RunConfig, selection, "") if selection else {}), **as_is},
        strategy=sections["strategy"],
        checkpoint=sections["checkpoint"],
        model=whole.get("model", {}),
        trainer=whole.get("trainer", {}),
        data_class=_text(data, DATA_CLASS),
        data={key: value for key, value in data.items() if key != DATA_CLASS},
    )
    named = {part: name for part, name in names.items() if name is not None}
    return replace(settings, selection={**settings.selection, **named})


def trainer_settings(settings: Settings, trainer: Callable[..., Any], names: Iterable[str]) -> dict[str, Any]:
    """Type the section `trainer` against the trainer's constructor.

    Args:
        trainer: the class.
        names: its settings.

    Raises:
        ConfigError: an unknown key, or a wrong type.
    """
    names = list(names)
    for key in settings.trainer:
        if key in ("strategy", *SELECTION):
            raise ConfigError(f"'trainer.{key}' isn't in a section: write it {key!r}, at the top level")
        renamed_selection(**{key: plain(settings.trainer[key])} if key in RENAMED else {})
        refuse_unknown(key, names, "trainer", CONFIG)
    return typed(trainer, settings.trainer, "trainer") if settings.trainer else {}


def strategy_settings(settings: Settings, strategy: Callable[..., Any] | None) -> dict[str, Any]:
    """Type the section `strategy` against the strategy's constructor.

    Args:
        strategy: the class; None where only the run is going to choose it, which checks the names.
    """
    if strategy is None or not settings.strategy:
        return {key: plain(value) for key, value in settings.strategy.items()}
    return typed(strategy, settings.strategy, "strategy")


def checkpoint_settings(settings: Settings, checkpointer: Callable[..., Any] | None) -> dict[str, Any]:
    """Type the section `checkpoint` against the checkpointer's constructor, whose `async_` is called async here.

    Args:
        checkpointer: the class; None where no installed one has that name.
    """
    if checkpointer is None or not settings.checkpoint:
        return {key: plain(value) for key, value in settings.checkpoint.items()}
    parameters = {f"{key}_" if iskeyword(key) else key: key for key in settings.checkpoint}
    values = {parameter: settings.checkpoint[key] for parameter, key in parameters.items()}
    return {parameters[key]: value for key, value in typed(checkpointer, values, "checkpoint").items()}


def _part_name(part: str, given: Any) -> str | None:
    name = plain(given)
    if name is None or isinstance(name, str):
        return name
    raise ConfigError(f"{part}={name!r} is no name: give one as {_EXAMPLES[part]}")


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Put `upper` over `lower`; options are dropped where `upper` names another strategy, or class of data."""
    result = dict(lower)
    for key, value in upper.items():
        if key not in SECTIONS:
            result[key] = value
            continue
        below = result.get(key, {})
        name = _NAMED.get(key)
        if name in value and plain(below.get(name)) not in (None, plain(value[name])):
            below = {}
        result[key] = {**below, **value}
    return result


def _from_file(path: str) -> dict[str, Any]:
    import yaml

    from stratagem_cli.composed import resolved
    from stratagem_cli.yaml_text import ExcessError, read_yaml_file

    try:
        content = read_yaml_file(path)
    except (OSError, ValueError) as error:  # not UTF-8, or a path that can't be one
        raise ConfigError(f"configuration {path!r} can't be read: {error}") from error
    except ExcessError as error:
        raise ConfigError(f"configuration {path!r} is refused: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration {path!r} isn't YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"configuration {path!r} holds a {type(content).__name__}; it must hold keys and values"
        )
    return _layer(resolved(path, content), f"configuration {path!r}")


def _from_set(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not section or (dot and not name):
        raise ConfigError(
            f"--set {text!r} can't be understood: write it section.key=value, as model.hidden=64"
        )
    if dot and section not in SECTIONS:
        refuse_unknown(section, SECTIONS, "", "--set")
    if section in _NAMED and not dot:
        return {section: {_NAMED[section]: value}}
    return _layer({section: {name: Text(value)} if dot else Text(value)}, "--set")


def _layer(content: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """Check sections and top-level keys, and make `strategy: ddp` the section it is short for."""
    layer = {str(key): value for key, value in content.items()}
    for key, value in layer.items():
        renamed_selection(**{key: plain(value)} if key in RENAMED else {})
        refuse_unknown(key, (*SECTIONS, *TOP_LEVEL), "", source)
        if key in _NAMED and isinstance(value, str):
            layer[key] = {_NAMED[key]: value}
        elif key in SECTIONS and value is None:
            layer[key] = {}
        elif key in SECTIONS and not isinstance(value, dict):
            raise ConfigError(f"{source} has {key}={plain(value)!r}: {key} is a section, write keys into it")
        elif key in SECTIONS:
            layer[key] = {str(name): setting for name, setting in value.items()}
    return layer


def _text(whole: Mapping[str, Any], key: str) -> str | None:
    value = whole.get(key)
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    raise ConfigError(f"{key}={value!r} is no text: give a path as text")
