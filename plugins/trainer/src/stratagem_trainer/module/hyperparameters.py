"""`save_hyperparameters` and `hparams`: save the constructor arguments of a module, in its checkpoints too."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

from stratagem.errors import ConfigError
from stratagem_trainer.module.hyperparameter_values import Unsaved, encoded, name_of, shown


class Hyperparameters(dict[str, Any]):
    """A dict whose items are also attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no hyperparameter {name!r}; available: {sorted(self)}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]


class HyperparametersMixin:
    """Saves the arguments of a constructor."""

    _hparams: Hyperparameters | None = None
    _hparams_initial: Hyperparameters | None = None
    _hparams_whole: tuple[str, str] | None = None
    """If one argument holds all hyperparameters: its name, and "attributes", "namespace" or its dataclass's name."""
    _hparams_called: tuple[str, ...] = ()
    """Names of the arguments of the object's own class, without those of its base classes' constructors."""
    _logs_hparams = True

    def save_hyperparameters(
        self,
        *names: Any,
        ignore: str | Iterable[str] = (),
        logger: bool = True,
        frame: FrameType | None = None,
    ) -> None:
        """Save the constructor's arguments in `hparams` and in checkpoints. Call it in `__init__`.

        It also saves the arguments of a subclass whose `__init__` calls this one. It saves the current values of the
        arguments. A value that can't be saved in a checkpoint, such as a module, a lambda or an open file, is only in
        `hparams`, and a warning names it: pass it to `load_from_checkpoint`. Nothing is pickled.

        Args:
            names: names of the arguments to save; all if none is given. Or one mapping, `argparse.Namespace` or
                dataclass, whose items are saved.
            ignore: names of arguments to leave out.
            logger: whether the loggers of a fit get them.
            frame: the frame of `__init__`, if that isn't the caller.

        Raises:
            ConfigError: it isn't called in `__init__`, or there is no such argument.
        """
        # patch: hyperparameters
        given, self._hparams_called = _arguments(self, frame or sys._getframe(1))
        left_out = {ignore} if isinstance(ignore, str) else set(ignore)
        whole = [each for each in names if not isinstance(each, str)]
        if whole:
            if len(names) > 1:
                raise ConfigError(
                    f"save_hyperparameters got {len(names)} arguments, one of them a {type(whole[0]).__name__}: pass "
                    "names, or one mapping, Namespace or dataclass"
                )
            kind, values = _items(whole[0])
            found = [name for name, value in given.items() if value is whole[0]]
            self._hparams_whole = (found[0], kind) if found else None
        else:
            unknown = sorted({*names, *left_out} - set(given)) if names else []
            if unknown:
                raise ConfigError(
                    f"save_hyperparameters got {unknown[0]!r}, and {type(self).__qualname__} has the arguments "
                    f"{', '.join(given) or 'none'}: name one of these"
                )
            values = {name: value for name, value in given.items() if not names or name in names}
        values = {name: value for name, value in values.items() if name not in left_out}
        for name, reason in _unsaved(values).items():
            warnings.warn(
                f"save_hyperparameters can't save {name!r} in checkpoints: it {reason}; load_from_checkpoint will "
                f"need {name}=…, and ignore=[{name!r}] leaves it out without this warning",
                stacklevel=2,
            )
        self._hparams = Hyperparameters({**(self._hparams or {}), **values})
        self._hparams_initial = _copied(self._hparams)
        self._logs_hparams = logger

    @property
    def hparams(self) -> Hyperparameters:
        """The saved hyperparameters, as items and attributes. Checkpoints get their values at the time of saving."""
        if self._hparams is None:
            self._hparams = Hyperparameters()
        return self._hparams

    @hparams.setter
    def hparams(self, value: Any) -> None:
        raise ConfigError("hparams can't be assigned: call self.save_hyperparameters(…) in __init__")

    @property
    def hparams_initial(self) -> Hyperparameters:
        """A copy of the hyperparameters at the time of `save_hyperparameters`."""
        return _copied(self._hparams_initial or {})

    def hyperparameter_state(self) -> dict[str, Any]:
        """Return the part of a checkpoint's state for `load_from_checkpoint`. See `hyperparameter_values.encoded`."""
        skipped = _unsaved(self.hparams)
        values = {name: encoded(value, name) for name, value in self.hparams.items() if name not in skipped}
        return {
            "values": values,
            "called": list(self._hparams_called),
            "whole": self._hparams_whole,
            "left_out": skipped,
        }

    def logged_hyperparameters(self) -> dict[str, Any]:
        """Return JSON-serializable values for loggers. Classes and functions are given by name."""
        if not self._logs_hparams:
            return {}
        skipped = _unsaved(self.hparams)
        return {name: shown(value) for name, value in self.hparams.items() if name not in skipped}


def logged_together(module: HyperparametersMixin, data: HyperparametersMixin | None) -> dict[str, Any]:
    """Return the hyperparameters of a module and its data module for loggers.

    Raises:
        ConfigError: both have a hyperparameter of the same name with different values.
    """
    of_module = module.logged_hyperparameters()
    of_data = {} if data is None else data.logged_hyperparameters()
    differ = [name for name, value in of_data.items() if name in of_module and of_module[name] != value]
    if differ:
        name, owners = differ[0], (type(module).__qualname__, type(data).__qualname__)
        raise ConfigError(
            f"hyperparameter {name!r} is {of_module[name]!r} in {owners[0]} and {of_data[name]!r} in {owners[1]}, "
            "but loggers take one value: rename it in one of them, or call "
            "save_hyperparameters(logger=False) there"
        )
    return {**of_module, **of_data}


def _arguments(owner: object, frame: FrameType | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of the running constructors of `owner`, and the names of the outermost one's."""
    found: dict[str, Any] = {}
    called: tuple[str, ...] = ()
    is_constructor = False
    while frame is not None and _is_method_of(owner, frame):
        if frame.f_code.co_name == "__init__":
            is_constructor = True
            names, rest, keywords, values = inspect.getargvalues(frame)
            if rest is not None and values[rest]:
                warnings.warn(
                    f"save_hyperparameters can't save *{rest} of {type(owner).__qualname__}, which have no names: "
                    "pass them as keywords",
                    stacklevel=3,
                )
            # The first argument is `self`.
            own = {name: values[name] for name in names[1:] if name in values}
            own.update(values[keywords] if keywords is not None else {})
            called = tuple(own)
            found.update(own)
        frame = frame.f_back
    if not is_constructor:
        raise ConfigError(
            f"save_hyperparameters saves the arguments of {type(owner).__qualname__}.__init__: call it there"
        )
    return found, called


def _is_method_of(owner: object, frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is owner


def _items(whole: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(whole, Mapping):
        return "attributes", {str(name): value for name, value in whole.items()}
    if isinstance(whole, Namespace):
        return "namespace", dict(vars(whole))
    if is_dataclass(whole) and not isinstance(whole, type):
        return name_of(type(whole)), {field.name: getattr(whole, field.name) for field in fields(whole)}
    raise ConfigError(
        f"save_hyperparameters got a {type(whole).__name__}: pass names of arguments, or a mapping, Namespace or "
        "dataclass"
    )


def _unsaved(values: Mapping[str, Any]) -> dict[str, str]:
    """Return name → reason why the value can't be saved."""
    found = {}
    for name, value in values.items():
        try:
            encoded(value, name)
        except Unsaved as error:
            found[name] = str(error)
    return found


def _copied(values: Mapping[str, Any]) -> Hyperparameters:
    unsaved: Sequence[str] = tuple(_unsaved(values))
    return Hyperparameters(
        {name: value if name in unsaved else copy.deepcopy(value) for name, value in values.items()}
    )
