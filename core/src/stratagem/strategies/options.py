"""Options that strategies share: one `TypedDict` for each base class, called a record here.

A strategy's constructor takes them as `**options: Unpack[ProcessGroupOptions]` and passes them to its base.
`show_options` lists them in the constructor's signature.
"""

# No `from __future__ import annotations`: `show_options` copies these types into signatures of other modules, where
# their names can't be looked up.

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, get_type_hints

import torch

from stratagem.accelerators.base import Accelerator
from stratagem.checkpoint.base import Checkpointer
from stratagem.collectives.base import Collectives
from stratagem.environments.base import Environment
from stratagem.errors import ConfigError, nearest
from stratagem.launchers.base import StartMethod
from stratagem.precision.base import Precision


class StrategyOptions(TypedDict, total=False):
    """Options of every strategy."""

    accelerator: Accelerator | str | None
    """An accelerator object or name that overrides the run's choice."""
    checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None
    """A checkpointer, or a function that makes one from the run's collectives; overrides the run's choice."""
    precision_plugin: Precision | str | None
    """A precision object or name that overrides the run's choice."""


class ParallelOptions(StrategyOptions, total=False):
    """Options of strategies with several processes."""

    parallel_devices: Sequence[torch.device] | None
    """This node's devices, one per process; overrides the run's `devices`."""
    cluster_environment: Environment | type[Environment] | str | None
    """An environment, its class or its name; None detects it."""


class ProcessGroupOptions(ParallelOptions, total=False):
    """Options of strategies whose ranks communicate through a `torch.distributed` group."""

    process_group_backend: str | None
    """Such as "gloo" or "nccl". None: the backend named in STRATAGEM_PROCESS_GROUP_BACKEND, else the
    accelerator's."""
    timeout: timedelta | None
    """How long a collective waits for ranks that don't join it; 30 minutes when None."""
    timeout_s: float | None
    """`timeout` in seconds, for the command line."""
    start_method: StartMethod
    """"forkserver", "popen", "spawn" or "fork"."""


def split_options(record: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keywords into those of a record of options and all others.

    For constructors that pass the other keywords to an engine.

    Args:
        record: a `TypedDict` of options, such as `ProcessGroupOptions`.
        given: keywords by name.

    Returns:
        The record's keywords, for the base's constructor, and the others.
    """
    names = options_in(record)
    shared = {name: value for name, value in given.items() if name in names}
    return shared, {name: value for name, value in given.items() if name not in names}


def options_in(record: type) -> Collection[str]:
    """Return the names of the options in a record, including those of its bases."""
    names: Collection[str] = record.__optional_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    return names


def refuse_unknown(strategy: object, left: Mapping[str, object]) -> None:
    """Refuse keywords that no constructor of a strategy took.

    Args:
        strategy: while it is being constructed.
        left: the keywords that remain.

    Raises:
        ConfigError: a keyword remains; names the nearest known one.
    """
    for name in left:
        known = [
            each.name
            for each in inspect.signature(type(strategy)).parameters.values()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        near = nearest(name, known, f"it has {', '.join(known)}")
        raise ConfigError(f"{type(strategy).__name__} has no setting {name!r}; {near}")


def show_options(cls: type) -> None:
    """Give a strategy's constructor a signature that lists the options which its `**options` stand for.

    `help()`, `--set strategy.…` and the generated pages read it. `**options: Unpack[Record]` becomes the options of
    the record. If only type checkers import the record, it becomes the options of the base's constructor. A
    `**kwargs` of any other type stays, after the base's options.

    Args:
        cls: a strategy's class.
    """
    init = vars(cls).get("__init__")
    if not inspect.isfunction(init):
        return
    signature = inspect.signature(init)
    *own, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return
    record, is_closed = _record_of(last.annotation, init.__globals__)
    options = [each for each in _options_of(cls, record) if each.name not in signature.parameters]
    init.__signature__ = signature.replace(  # type: ignore[attr-defined]  # functions take any attribute
        parameters=[*own, *options, *([] if is_closed else [last])]
    )


def _record_of(annotation: Any, names: Mapping[str, Any]) -> tuple[type | None, bool]:
    """Return the record that an annotation unpacks, if it can be found, and whether it unpacks one."""
    if not isinstance(annotation, str):
        unpacked = getattr(annotation, "__args__", ())
        found = next((each for each in unpacked if hasattr(each, "__optional_keys__")), None)
        return found, found is not None
    unpacks, _, name = annotation.strip("]").rpartition("[")
    if not unpacks.endswith("Unpack"):
        return None, False
    module, _, name = name.rpartition(".")
    found = getattr(names.get(module), name, None) if module else names.get(name)
    return (found if hasattr(found, "__optional_keys__") else None), True


def _options_of(cls: type, record: type | None) -> list[inspect.Parameter]:
    base = inspect.signature(cls.__mro__[1].__init__).parameters  # type: ignore[misc]  # of the base, on purpose
    keyword = inspect.Parameter.KEYWORD_ONLY
    if record is None:
        return [
            each.replace(kind=keyword)
            for each in list(base.values())[1:]
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
    # A TypedDict's annotations begin with those of its bases.
    return [
        inspect.Parameter(
            name,
            keyword,
            annotation=annotation,
            default=base[name].default if name in base else _default(cls, name),
        )
        for name, annotation in _types_in(record).items()
    ]


def _types_in(record: type) -> Mapping[str, Any]:
    try:
        return get_type_hints(record)
    except NameError:  # a name that only type checkers import
        return record.__annotations__


def _default(cls: type, name: str) -> Any:
    """Return the class attribute of that name: constructors use it if the option is missing."""
    found = inspect.getattr_static(cls, name, None)
    return None if hasattr(found, "__get__") else found
