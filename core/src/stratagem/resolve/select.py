"""Chooses one component per kind, and refuses combinations that can't work, before any launch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import CO_VARKEYWORDS, Parameter, signature
from typing import TYPE_CHECKING, Any

from stratagem.checkpoint.missing import MissingCheckpointer
from stratagem.config import RunConfig
from stratagem.errors import (
    BrokenPluginError,
    ConfigError,
    DeviceError,
    PrecisionError,
    UnknownNameError,
    UsageError,
    short,
)
from stratagem.installed.catalogue import Catalogue
from stratagem.plugin.component import Capabilities, Component
from stratagem.resolve.pairing import allows, automatic_strategy
from stratagem.resolve.resolved import (
    GIVEN,
    Constant,
    Deferred,
    GivenPrecision,
    Resolved,
    as_keywords,
    resolved_from,
)
from stratagem.resolve.uncalled import refuse_uncalled

if TYPE_CHECKING:
    from stratagem.accelerators.base import Accelerator
    from stratagem.strategies.base import Strategy


def choose_strategy(
    catalogue: Catalogue,
    wanted: Any,
    options: Mapping[str, Any],
    processes: int,
    accelerator: Resolved | None = None,
) -> Resolved:
    """Make the strategy.

    Args:
        wanted: a name, "auto", or a strategy object.
        options: keyword values for its constructor.
        processes: how many processes the run needs; decides "auto".
        accelerator: the run's, if it is known; "auto" leaves out strategies that don't work with it.
    """
    if not isinstance(wanted, str):
        return _given_strategy(catalogue, checked_strategy(catalogue, wanted), options)
    if wanted == "auto":
        component = automatic_strategy(catalogue, processes, accelerator)
        why = f"auto: {processes} device{'s' * (processes != 1)}"
        return make_strategy(component, component.name, options, why)
    return make_strategy(catalogue.find("strategy", wanted), wanted, options)


def make_strategy(component: Component, name: str, options: Mapping[str, Any], why: str = "") -> Resolved:
    """Make the strategy of `component`, which was chosen as `name`."""
    cls = component.load()
    check_options(cls, options, f"strategy {component.name!r}")
    return _refined(resolved_from(component, cls(**{**component.options, **options}), name, why))


def _refined(strategy: Resolved) -> Resolved:
    from stratagem.strategies.base import Strategy

    if not isinstance(strategy.value, Strategy):
        raise BrokenPluginError(
            f"strategy {strategy.name!r} of {strategy.origin} is an object of {type(strategy.value).__qualname__}, "
            "which isn't derived from stratagem.Strategy: tell its authors, or uninstall it"
        )
    return replace(strategy, capabilities=strategy.value.refine_capabilities(strategy.capabilities))


def _given_strategy(catalogue: Catalogue, strategy: Strategy, options: Mapping[str, Any]) -> Resolved:
    if options:
        raise ConfigError(
            f"strategy options {sorted(options)} go with a strategy's name, but a "
            f"{type(strategy).__name__} object was given: set them in its constructor"
        )
    name = type(strategy).__name__
    declared = {component.target: component for component in catalogue.of_kind("strategy")}
    refuse_uncalled(_of_the_user(strategy, declared))
    for cls in type(strategy).__mro__:
        component = declared.get(f"{cls.__module__}:{cls.__qualname__}")
        if component is not None:
            return _refined(resolved_from(component, strategy, name, GIVEN))
        if "capabilities" in vars(cls):
            break  # a subclass of a declared class, with capabilities of its own
    return _refined(Resolved("strategy", name, strategy, capabilities=strategy.capabilities))


def _of_the_user(strategy: Strategy, declared: Collection[str]) -> Iterator[type]:
    """Yield the user's classes of a strategy: those before the first class of a distribution or of the core."""
    from stratagem.strategies.base import Strategy

    for cls in type(strategy).__mro__:
        if f"{cls.__module__}:{cls.__qualname__}" in declared or cls in Strategy.__mro__:
            return
        yield cls


def checked_strategy(catalogue: Catalogue, given: Any) -> Strategy:
    """Return `given` if it is a strategy.

    Raises:
        UsageError: it is neither a name nor a strategy.
    """
    from stratagem.strategies.base import Strategy

    if not isinstance(given, Strategy):
        raise UsageError(
            f"strategy={given!r} is neither a name nor a Strategy: pass one of {catalogue.names('strategy')}, "
            "or an object of a class derived from stratagem.Strategy"
        )
    return given


def check_options(cls: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse keyword values that the constructor of `cls` doesn't have.

    A constructor with `**kwargs` refuses them itself, because it knows what options are called elsewhere.
    """
    # `signature` may not show `**kwargs`: `show_options` lists a record's options instead.
    code = getattr(cls.__init__, "__code__", None)
    if code is not None and code.co_flags & CO_VARKEYWORDS:
        return
    refuse_unknown_options(signature(cls).parameters.values(), options, what)


def refuse_unknown_options(parameters: Iterable[Parameter], options: Mapping[str, Any], what: str) -> None:
    """Refuse keyword values that none of `parameters` takes."""
    parameters = list(parameters)
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [parameter.name for parameter in parameters]
    unknown = sorted(set(options) - set(names))
    if unknown:
        allowed = ", ".join(name.removesuffix("_") for name in names)
        raise ConfigError(
            f"{what} has no setting {unknown[0].removesuffix('_')!r}; it has {allowed or 'none'}"
        )


def choose_accelerator(
    catalogue: Catalogue, wanted: Any, capabilities: Capabilities | None, device_type: str | None = None
) -> Resolved:
    """Return the accelerator: the given object, the named one, or the best available one for "auto".

    Args:
        capabilities: the strategy's, if it is known; "auto" leaves out accelerators on which it doesn't work.
        device_type: type of the given devices; "auto" leaves out accelerators of another type.
    """
    if not isinstance(wanted, str):
        from stratagem.accelerators.base import Accelerator

        if not isinstance(wanted, Accelerator):
            raise ConfigError(
                f"accelerator={short(wanted)} is neither a name nor an Accelerator: give a name, as 'cpu' or 'auto', "
                "or an object of a class derived from stratagem.Accelerator"
            )
        return Resolved(
            "accelerator", wanted.name, wanted, capabilities=_declared_capabilities(catalogue, wanted)
        )
    if wanted != "auto":
        return _named_accelerator(catalogue, wanted)
    refused: list[str] = []
    left_out: list[str] = []
    absent: list[str] = []  # The plan names them; `stratagem accelerators` says why.
    for component in catalogue.of_kind("accelerator"):
        name = component.name
        if not component.automatic:
            continue
        if capabilities is not None and not allows(capabilities.accelerators, name):
            left_out.append(f"{name}: not with this strategy")
            continue
        accelerator: Accelerator = component.load()()
        availability = accelerator.availability()
        if availability.ok and device_type not in (None, accelerator.device(0).type):
            left_out.append(f"{name}: not for {device_type}")
            continue
        if availability.ok:
            others = [f"not available: {', '.join(absent)}"] if absent else []
            why = f"auto: {'; '.join([availability.reason, *left_out, *others])}"
            return resolved_from(component, accelerator, why=why)
        absent.append(name)
        refused.append(f"{name}: {availability.reason}")
    reasons = "; ".join(refused) or "none is installed"
    if device_type is not None:
        raise DeviceError(
            f"no accelerator for devices of the type {device_type!r} is available here: "
            f"{'; '.join([*left_out, *refused])}; give other devices"
        )
    if left_out:
        raise DeviceError(f"no accelerator that this strategy works on is available here: {reasons}")
    raise DeviceError(f"no accelerator is available here ({reasons}): pip install stratagem")


def _declared_capabilities(catalogue: Catalogue, accelerator: Accelerator) -> Capabilities:
    target = f"{type(accelerator).__module__}:{type(accelerator).__qualname__}"
    declared = {component.target: component.capabilities for component in catalogue.of_kind("accelerator")}
    return declared.get(target, Capabilities())


def _named_accelerator(catalogue: Catalogue, name: str) -> Resolved:
    try:
        component = catalogue.find("accelerator", name)
    except UnknownNameError:
        if name in catalogue.names("strategy"):
            raise UnknownNameError(
                f"accelerator={name!r} names a strategy: it is now called strategy={name!r}, with "
                f"accelerator one of {catalogue.names('accelerator')}"
            ) from None
        raise
    accelerator: Accelerator = component.load()()
    availability = accelerator.availability()
    if not availability.ok:
        others = _available(catalogue)
        raise DeviceError(
            f"accelerator {name!r} is not available here: {availability.reason}; available: "
            f"{', '.join(others) or 'none'}"
        )
    return resolved_from(component, accelerator, why=availability.reason)


def _available(catalogue: Catalogue) -> list[str]:
    return [each.name for each in catalogue.of_kind("accelerator") if each.load()().availability().ok]


def choose_precision(
    catalogue: Catalogue, wanted: Any, accelerator: Accelerator, capabilities: Capabilities
) -> Resolved:
    """Return the precision. Its value is a function that makes it: `create(name, device)`."""
    # 32 and 16 are names of precisions, as in Lightning; True is an int to Python.
    if not isinstance(wanted, (str, int)) or isinstance(wanted, bool):
        name = getattr(wanted, "name", type(wanted).__name__)
        declared = next((each for each in catalogue.of_kind("precision") if each.name == name), None)
        if declared is not None:
            _check_precision(catalogue, declared, accelerator, capabilities)
        return Resolved("precision", name, GivenPrecision(wanted))
    try:
        component = catalogue.find("precision", str(wanted))
    except UnknownNameError as error:
        raise PrecisionError(str(error)) from None
    _check_precision(catalogue, component, accelerator, capabilities)
    return resolved_from(component, component.load())


def _check_precision(
    catalogue: Catalogue, component: Component, accelerator: Accelerator, capabilities: Capabilities
) -> None:
    """Refuse a precision that the accelerator or the strategy doesn't support."""
    name = component.name
    refusal = _refuse_on(accelerator, component)
    if refusal is not None:
        raise PrecisionError(
            f"precision {name!r} is not available on {accelerator.name}: {refusal}; "
            f"{accelerator.name} has {', '.join(_possible(catalogue, accelerator))}"
        )
    if not allows(capabilities.precisions, name):
        raise PrecisionError(
            f"precision {name!r} doesn't work with this strategy; it has {', '.join(capabilities.precisions)}"
        )


def _refuse_on(accelerator: Accelerator, component: Component) -> str | None:
    """Return why a precision isn't available on an accelerator; None if it is."""
    able = component.capabilities.accelerators
    if not allows(able, accelerator.name):
        return f"it only works on {' or '.join(able)}"
    return accelerator.refuse_precision(component.name)


def _possible(catalogue: Catalogue, accelerator: Accelerator) -> Iterable[str]:
    return [each.name for each in catalogue.of_kind("precision") if _refuse_on(accelerator, each) is None]


def choose_checkpointer(
    catalogue: Catalogue, given: Any, name: str, options: Mapping[str, Any] | None = None
) -> Resolved:
    """Return the checkpointer: the strategy's own, or the one with this name.

    Its value is a function that makes it from collectives.

    Args:
        given: the strategy's `Checkpointer`, or a function that makes one; None for none.
        name: name of an installed one. If the default one is missing, saving or loading raises the error.
        options: keyword values for its constructor.
    """
    if given is not None:
        if options:
            raise ConfigError(
                f"checkpoint options {sorted(options)} go with a checkpointer's name, but the strategy was given "
                "checkpoint_io: set them where that is made"
            )
        if not isinstance(given, type) and all(
            callable(getattr(given, name, None)) for name in ("save", "open")
        ):
            return Resolved("checkpoint", type(given).__name__, Constant(given))
        if not callable(given):
            raise ConfigError(
                f"checkpoint_io={short(given)} is neither a Checkpointer nor a function that makes one from "
                "the run's collectives"
            )
        return Resolved("checkpoint", getattr(given, "__qualname__", repr(given)), given)
    try:
        component = catalogue.find("checkpoint", name)
    except UnknownNameError as error:
        if name != RunConfig.checkpoint or options:
            raise
        return Resolved("checkpoint", name, Constant(MissingCheckpointer(str(error))), "not here")
    if options:
        # Only to check its options, the class is imported in the launching process, too; see `Deferred`.
        _, *own = signature(component.load()).parameters.values()
        refuse_unknown_options(own, as_keywords(options), f"checkpoint {component.name!r}")
    return resolved_from(component, Deferred(component, options))
