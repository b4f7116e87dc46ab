"""What `--on PLACE` and `--on-set` name: an installed place, with options of a file and the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import ConfigError, UnknownNameError, nearest
from stratagem.sdk.catalogue import load_catalogue
from stratagem_places.place import Place

FILE = "places.yaml"
VARIABLE = "STRATAGEM_PLACES"
"""Names a file that is read instead of the others."""


@dataclass(frozen=True)
class ChosenPlace:
    """A place, made."""

    component: str
    """The component's name, by which a run's record finds it again."""
    options: Mapping[str, Any]
    """Arguments of its constructor, typed."""
    place: Place


@dataclass(frozen=True)
class NamedPlaces:
    """Options by name, of a file."""

    path: str
    places: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Component → name → place."""


def choose(on: str, sets: Sequence[str] = ()) -> ChosenPlace:
    """Make the place that `--on` names.

    Args:
        on: a component's name, DISTRIBUTION:NAME, or COMPONENT:NAME with a name of places.yaml.
        sets: KEY=VALUE, which go over the file's.

    Raises:
        UsageError: there is no such place, name or option, or a value has the wrong type.
    """
    from stratagem_cli.typed import Text

    catalogue = load_catalogue()
    component, colon, name = on.partition(":")
    values: dict[str, Any] = {}
    if colon and component in catalogue.names("place"):
        values.update(named_options(component, name))
    else:
        component = on
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--on-set {text!r} can't be understood: write it key=value, as partition=gpu")
        values[key.strip().replace("-", "_")] = Text(value)
    return make(component, values)


def make(name: str, values: Mapping[str, Any]) -> ChosenPlace:
    """Make a place with options that are as YAML has them, or `Text`.

    Raises:
        UsageError: there is no such place or option, or a value has the wrong type.
    """
    from stratagem_cli.typed import typed

    component = load_catalogue().find("place", name)
    place_class = component.load()
    options = {**component.options, **(typed(place_class, values, "") if values else {})}
    return ChosenPlace(component.name, options, place_class(**options))


def named_options(component: str, name: str) -> Mapping[str, Any]:
    """Return the options of a named place; the file of the working directory wins over the user's.

    Raises:
        UnknownNameError, ConfigError: the name is unknown, or a file can't be read.
    """
    files = named_places()
    known = [each for file in files for each in file.places.get(component, {})]
    for file in files:
        if name in file.places.get(component, {}):
            return file.places[component][name]
    if not files:
        raise UnknownNameError(
            f"--on {component}:{name} names a place in a file, and no file exists among {', '.join(_paths())}: write "
            f"{component}: {{{name}: {{…}}}} into one"
        )
    raise UnknownNameError(
        f"{' and '.join(file.path for file in files)} has no {name!r} below {component!r}; {nearest(name, known)}"
    )


def named_places() -> list[NamedPlaces]:
    """Read the files with named places that are there.

    Raises:
        ConfigError: one can't be read, or holds something else.
    """
    return [_read(path) for path in _paths() if os.path.exists(path)]


def _paths() -> list[str]:
    if os.environ.get(VARIABLE):
        return [os.environ[VARIABLE]]
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [FILE, os.path.join(home, "stratagem", FILE)]


def _read(path: str) -> NamedPlaces:
    import yaml
    from stratagem_cli.yaml_text import ExcessError, read_yaml_file

    try:
        content = read_yaml_file(path) or {}
    except (OSError, ValueError, ExcessError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    levels = [content, *(content.values() if isinstance(content, dict) else ())]
    levels += [options for names in levels[1:] if isinstance(names, dict) for options in names.values()]
    if not all(isinstance(level, dict) for level in levels):
        raise ConfigError(
            f"{path} must hold options by name, and names by place, as slurm: {{a100: {{partition: a100}}}}"
        )
    return NamedPlaces(path, content)
