"""Which strategies go with which accelerators and settings, before any launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem.errors import CombinationError, UnknownNameError
from stratagem.plugin.catalogue import Catalogue
from stratagem.plugin.component import FEATURES, Capabilities, Component
from stratagem.plugin.offers import Offer

if TYPE_CHECKING:
    from stratagem.resolve.select import Chosen


def automatic_strategy(catalogue: Catalogue, processes: int, accelerator: Chosen | None) -> Offer:
    """Return what "auto" stands for: the first that wants so many processes, or drives so many devices.

    Args:
        catalogue: what is installed; what lacks a library isn't considered.
        processes: how many devices the run has.
        accelerator: their kind, where it is known.

    Raises:
        UnknownNameError: there is none.
    """
    offers = [offer for offer in catalogue.of_kind("strategy") if not offer.component.missing()]
    if accelerator is not None:
        offers = [offer for offer in offers if _go_together(offer.component, accelerator)]
    kind = "per-device" if processes > 1 else "one"
    fitting = [offer for offer in offers if offer.component.capabilities.processes == kind]
    if processes > 1:
        fitting += [o for o in offers if "several_devices" in o.component.capabilities.features]
    if not fitting:
        raise UnknownNameError(
            f"no installed strategy trains on {processes} devices: pip install stratagem-ddp, or choose devices=1"
        )
    return fitting[0]


def _go_together(strategy: Component, accelerator: Chosen) -> bool:
    return allows(strategy.capabilities.accelerators, accelerator.choice.name) and allows(
        accelerator.capabilities.strategies, strategy.name
    )


def refuse_missing_features(
    catalogue: Catalogue, name: str, capabilities: Capabilities, needed: Sequence[str]
) -> None:
    """Refuse what the strategy doesn't declare, naming strategies that do.

    Raises:
        CombinationError: a needed feature is missing.
    """
    missing = [feature for feature in needed if feature not in capabilities.features]
    if not missing:
        return
    raise refusal(catalogue, name, FEATURES[missing[0]], needed)


def refusal(catalogue: Catalogue, name: str, what: str, needed: Sequence[str]) -> CombinationError:
    """Return the error that strategy `name` can't do `what`; it names strategies that have the features `needed`."""
    able = [
        offer.component.name
        for offer in catalogue.of_kind("strategy")
        if set(needed) <= offer.component.capabilities.features
    ]
    return CombinationError(f"strategy {name!r} can't do this: {what}; {_instead(able)}")


def refuse_accelerator(catalogue: Catalogue, strategy: Chosen, accelerator: Chosen) -> None:
    """Refuse a strategy and an accelerator that don't go together.

    Raises:
        CombinationError: names strategies that do.
    """
    able = [o.component.name for o in catalogue.of_kind("strategy") if _go_together(o.component, accelerator)]
    its_own = accelerator.capabilities.strategies
    if strategy.component and not allows(its_own, strategy.component):
        raise CombinationError(
            f"accelerator {accelerator.choice.name!r} works with {', '.join(its_own)}, not with "
            f"{strategy.choice.name}; {_instead(able)}"
        )
    if not allows(strategy.capabilities.accelerators, accelerator.choice.name):
        raise CombinationError(
            f"strategy {strategy.choice.name!r} works on {', '.join(strategy.capabilities.accelerators)}, not on "
            f"{accelerator.choice.name}; {_instead(able)}"
        )


def strategies_for(catalogue: Catalogue, processes: str) -> list[str]:
    """Names of installed strategies that want this many processes, nearest first."""
    return [
        offer.component.name
        for offer in catalogue.of_kind("strategy")
        if offer.component.capabilities.processes == processes
    ]


def _instead(names: Sequence[str]) -> str:
    return f"installed strategies that can: {', '.join(names)}" if names else "no installed strategy can"


def allows(allowed: Sequence[str], name: str) -> bool:
    """Whether a declared list of names has `name`; "*" has all."""
    return "*" in allowed or name in allowed
