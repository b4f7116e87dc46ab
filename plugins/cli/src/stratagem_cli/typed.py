"""Values from configuration files and `--set`, checked against a constructor's signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from stratagem.errors import ConfigError, nearest


class Text(str):
    """A value given to `--set`: text whose type the signature decides."""

    __slots__ = ()

    def plain(self) -> Any:
        """What the text is in YAML, where no signature says more."""
        import yaml

        from stratagem_cli.yaml_text import read_yaml

        try:
            return read_yaml(self)
        except yaml.YAMLError:
            return str(self)


def plain(value: Any) -> Any:
    """Return `value` without the mark of `--set`."""
    return value.plain() if isinstance(value, Text) else value


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function or class, without *args and **kwargs."""
    return {name: p for name, p in _signature(function).items() if p.kind not in _VARIABLE}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default values of those parameters that have one."""
    found = parameters_of(function)
    return {name: p.default for name, p in found.items() if p.default is not inspect.Parameter.empty}


def typed(function: Callable[..., Any], values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Convert `values` to what the signature of `function` asks for.

    Args:
        function: a class or function; its parameters' annotations are followed, and keywords that
            it passes on with **kwargs as far as its source shows them.
        values: by parameter: what a YAML file says, or `Text`.
        section: names the values in messages, as "model"; "" for top-level ones.

    Raises:
        ConfigError: `function` has no such parameter, or the value isn't of its type.
    """
    defaults = defaults_of(function)
    return {
        key: value
        if key in defaults and type(value) is type(defaults[key]) and value == defaults[key]
        else _typed_value(function, key, value, section)
        for key, value in values.items()
    }


def refuse_unknown(key: str, known: Iterable[str], section: str, owner: str) -> None:
    """Raise `ConfigError` with the nearest names, unless `key` is known."""
    known = list(known)
    if key in known:
        return
    raise ConfigError(f"{owner} has no setting {_dotted(section, key)!r}; {nearest(key, known)}")


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    init = getattr(
        function, "__init__", None
    )  # of a class without its own, object's, which has no __module__
    if isinstance(function, type) and getattr(init, "__module__", "") == "torch.nn.modules.module":
        return {}  # torch.nn.Module takes any keyword only to refuse it
    return dict(inspect.signature(function).parameters)


def _typed_value(function: Callable[..., Any], key: str, value: Any, section: str) -> Any:
    from jsonargparse import Namespace

    _, names = _parser(function, ())
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in _signature(function).values())
    if key not in names and passes_on and names <= set(parameters_of(function)):
        return plain(value)  # **kwargs whose end can't be seen: its receiver has to check
    if key not in names:
        known = sorted(name.removesuffix("_") for name in names)
        refuse_unknown(key, known, section, function.__qualname__)
    # A parser of this one alone: others may be required, and are missed only in the call itself.
    parser, _ = _parser(function, names - {key})
    try:
        read = (
            parser.parse_args([f"--{key}={value}"])
            if isinstance(value, Text)
            else parser.parse_object({key: deepcopy(value)})  # it is changed on the way
        )
        instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
        result = instantiate(read)[key]
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{_dotted(section, key)}={plain(value)!r} is of the wrong type: {_expected(function, key, error)}"
        ) from error
    return vars(result) if isinstance(result, Namespace) else result


def _parser(function: Callable[..., Any], skip: Iterable[str]) -> tuple[Any, set[str]]:
    """Return jsonargparse's parser for the parameters of `function`, and their names."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, add_help=False)
    left_out: set[str | int] = set(skip)
    if isinstance(function, type):
        names = parser.add_class_arguments(
            function, None, fail_untyped=False, instantiate=False, skip=left_out
        )
    else:
        names = parser.add_function_arguments(function, None, fail_untyped=False, skip=left_out)
    return parser, {name.partition(".")[0] for name in names}


def _expected(function: Callable[..., Any], key: str, error: BaseException) -> str:
    parameter = parameters_of(function).get(key)
    if parameter is not None and parameter.annotation is not inspect.Parameter.empty:
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        return f"{function.__qualname__} wants {text.strip(chr(39))}"
    found = re.search(r"Expected an? (?:<class ')?([\w.\[\], ]+)", str(error))
    return f"{function.__qualname__} wants {found[1].rstrip('.')}" if found else " ".join(str(error).split())


def _dotted(section: str, key: str) -> str:
    key = key.removesuffix("_")  # async_, as Python makes one write it
    return f"{section}.{key}" if section else key
