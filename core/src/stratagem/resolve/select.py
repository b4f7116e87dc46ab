"""Choosing one component per kind, and refusing what can't work together, before any launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from stratagem.errors import (
    ConfigError,
    DeviceError,
    PrecisionError,
    UnknownNameError,
    UsageError,
    short,
)
from stratagem.plugin.catalogue import Catalogue
from stratagem.plugin.component import Capabilities
from stratagem.plugin.offers import Offer, Selection
from stratagem.resolve.pairing import allows, automatic_strategy

if TYPE_CHECKING:
    from stratagem.accelerators.base import Accelerator


@dataclass(frozen=True)
class Choice:
    """One line of the printed plan."""

    kind: str
    name: str
    origin: str
    """Distribution and version, or "given by the caller"."""
    why: str = ""


GIVEN = "given by the caller"


@dataclass(frozen=True)
class Chosen:
    """A component that was made, and what to print of it."""

    value: Any
    capabilities: Capabilities
    choice: Choice
    component: str = ""
    """Name of the component that it is of; empty where it is nobody's."""


def choose_strategy(
    catalogue: Catalogue,
    wanted: Any,
    options: Mapping[str, Any],
    processes: int,
    accelerator: Chosen | None = None,
) -> Chosen:
    """Make the strategy.

    Args:
        wanted: a name, "auto", or a strategy object.
        options: keyword values for its constructor.
        processes: how many processes the run needs; decides "auto".
        accelerator: the run's, where it is known; "auto" leaves out what doesn't go with it.
    """
    if not isinstance(wanted, str):
        return _given_strategy(catalogue, wanted, options)
    if wanted == "auto":
        selection = Selection(automatic_strategy(catalogue, processes, accelerator))
        why = f"auto: {processes} device{'s' * (processes != 1)}"
    else:
        selection, why = catalogue.find("strategy", wanted), ""
    component = selection.component
    cls = selection.load()
    check_options(cls, options, f"strategy {component.name!r}")
    strategy = cls(**{**selection.options, **options})
    name = wanted if wanted != "auto" else component.name
    choice = Choice("strategy", name, str(selection.offer.origin), why)
    return Chosen(strategy, strategy.refine_capabilities(component.capabilities), choice, component.name)


def _given_strategy(catalogue: Catalogue, strategy: Any, options: Mapping[str, Any]) -> Chosen:
    if options:
        raise ConfigError(
            f"strategy options {sorted(options)} go with a strategy's name, but a "
            f"{type(strategy).__name__} object was given: set them in its constructor"
        )
    declared = {offer.component.target: offer for offer in catalogue.of_kind("strategy")}
    for cls in type(strategy).__mro__:
        offer = declared.get(f"{cls.__module__}:{cls.__qualname__}")
        if offer is not None:
            choice = Choice("strategy", type(strategy).__name__, str(offer.origin), GIVEN)
            refined = strategy.refine_capabilities(offer.component.capabilities)
            return Chosen(strategy, refined, choice, offer.component.name)
        if "capabilities" in vars(cls):
            break  # a class derived from a declared one that declares something else
    capabilities = getattr(strategy, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise UsageError(
            f"strategy={strategy!r} is neither a name nor a Strategy: pass one of {catalogue.names('strategy')}, "
            "or an object of a class derived from stratagem.Strategy"
        )
    refined = strategy.refine_capabilities(capabilities)
    return Chosen(strategy, refined, Choice("strategy", type(strategy).__name__, GIVEN))


def check_options(cls: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse keyword values that the constructor of `cls` doesn't have."""
    parameters = signature(cls).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = sorted(set(options) - set(parameters))
    if unknown:
        raise ConfigError(f"{what} has no setting {unknown[0]!r}; it has {', '.join(parameters)}")


def choose_accelerator(
    catalogue: Catalogue, wanted: Any, capabilities: Capabilities | None, device_type: str | None = None
) -> Chosen:
    """Make the accelerator: an object, the one named, or the best that is there for "auto".

    Args:
        capabilities: the strategy's, where it was chosen already; "auto" leaves out what it can't use.
        device_type: of the devices that were given; "auto" leaves out accelerators of another.
    """
    if not isinstance(wanted, str):
        return Chosen(wanted, _declared_of(catalogue, wanted), Choice("accelerator", wanted.name, GIVEN))
    if wanted != "auto":
        return _named_accelerator(catalogue, wanted)
    refused: list[str] = []
    left_out: list[str] = []
    for offer in catalogue.of_kind("accelerator"):
        name = offer.component.name
        if capabilities is not None and not allows(capabilities.accelerators, name):
            left_out.append(f"{name}: not with this strategy")
            continue
        accelerator: Accelerator = Selection(offer).load()()
        availability = accelerator.availability()
        if availability.ok and device_type not in (None, accelerator.device(0).type):
            left_out.append(f"{name}: not for {device_type}")
            continue
        if availability.ok:
            why = f"auto: {'; '.join([*left_out, *refused, availability.reason])}"
            choice = Choice("accelerator", name, str(offer.origin), why)
            return Chosen(accelerator, offer.component.capabilities, choice)
        refused.append(f"{name}: {availability.reason}")
    reasons = "; ".join(refused) or "none is installed"
    if device_type is not None:
        raise DeviceError(
            f"no accelerator for devices of the type {device_type!r} is available here: "
            f"{'; '.join([*left_out, *refused])}; give other devices"
        )
    if left_out:
        raise DeviceError(f"no accelerator that this strategy works on can be had here: {reasons}")
    raise DeviceError(f"no accelerator can be had here ({reasons}): pip install stratagem-cpu")


def _declared_of(catalogue: Catalogue, accelerator: Accelerator) -> Capabilities:
    target = f"{type(accelerator).__module__}:{type(accelerator).__qualname__}"
    offers = catalogue.of_kind("accelerator")
    return next((o.component.capabilities for o in offers if o.component.target == target), Capabilities())


def _named_accelerator(catalogue: Catalogue, name: str) -> Chosen:
    try:
        selection = catalogue.find("accelerator", name)
    except UnknownNameError:
        if name in catalogue.names("strategy"):
            raise UnknownNameError(
                f"accelerator={name!r} names a strategy: today's spelling is strategy={name!r}, with "
                f"accelerator one of {catalogue.names('accelerator')}"
            ) from None
        raise
    accelerator: Accelerator = selection.load()()
    availability = accelerator.availability()
    if not availability.ok:
        others = [n for n in _available(catalogue) if n != selection.component.name]
        raise DeviceError(
            f"accelerator {name!r} is not available here: {availability.reason}; here is "
            f"{', '.join(others) or 'none'}"
        )
    choice = Choice("accelerator", selection.component.name, str(selection.offer.origin), availability.reason)
    return Chosen(accelerator, selection.component.capabilities, choice)


def _available(catalogue: Catalogue) -> list[str]:
    return [
        offer.component.name
        for offer in catalogue.of_kind("accelerator")
        if Selection(offer).load()().availability().ok
    ]


def choose_precision(
    catalogue: Catalogue, wanted: Any, accelerator: Accelerator, capabilities: Capabilities
) -> tuple[str, Any, Choice]:
    """Return the precision's name, its factory `create(name, device)`, and the plan's line."""
    if not isinstance(wanted, (str, int)) or isinstance(wanted, bool):
        name = getattr(wanted, "name", type(wanted).__name__)
        return name, _Constant(wanted), Choice("precision", name, GIVEN)
    try:
        selection = catalogue.find("precision", str(wanted))
    except UnknownNameError as error:
        raise PrecisionError(str(error)) from None
    name = selection.component.name
    refusal = accelerator.refuse_precision(name)
    if refusal is not None:
        raise PrecisionError(
            f"precision {name!r} is not available on {accelerator.name}: {refusal}; "
            f"{accelerator.name} has {', '.join(_possible(catalogue, accelerator))}"
        )
    if not allows(capabilities.precisions, name):
        raise PrecisionError(
            f"precision {name!r} doesn't work with this strategy; it has {', '.join(capabilities.precisions)}"
        )
    choice = Choice("precision", name, str(selection.offer.origin))
    return name, selection.load(), choice


def _possible(catalogue: Catalogue, accelerator: Accelerator) -> Iterable[str]:
    names = [offer.component.name for offer in catalogue.of_kind("precision")]
    return [name for name in names if accelerator.refuse_precision(name) is None]


def choose_checkpointer(catalogue: Catalogue, given: Any, name: str) -> tuple[Any, Choice]:
    """Return what makes a checkpointer of collectives: the strategy's own, or the one of that name.

    Args:
        given: by the strategy: a `Checkpointer`, or what makes one; None for none.
    """
    if given is not None:
        if not isinstance(given, type) and all(
            callable(getattr(given, name, None)) for name in ("save", "open")
        ):
            return _Constant(given), Choice("checkpoint", type(given).__name__, GIVEN)
        if not callable(given):
            raise ConfigError(
                f"checkpoint_io={short(given)} is neither a Checkpointer nor a function that makes one from "
                "the run's collectives"
            )
        return given, Choice("checkpoint", getattr(given, "__qualname__", repr(given)), GIVEN)
    selection = catalogue.find("checkpoint", name)
    return Deferred(selection), Choice("checkpoint", selection.component.name, str(selection.offer.origin))


@dataclass(frozen=True)
class Deferred:
    """Imports a component when it is made.

    A checkpointer's imports take half a second, which a launching process would spend for nothing: only
    workers make one.
    """

    selection: Selection

    def __call__(self, *arguments: Any) -> Any:
        return self.selection.load()(*arguments)


@dataclass(frozen=True)
class _Constant:
    """A factory that returns what the caller gave."""

    value: Any

    def __call__(self, *_: Any) -> Any:
        return self.value


def origins(offers: Iterable[Offer]) -> dict[str, str]:
    """Distribution → version of `offers`."""
    return {offer.origin.distribution: offer.origin.version for offer in offers}
