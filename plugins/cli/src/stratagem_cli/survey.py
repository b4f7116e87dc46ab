"""What is installed, and whether it can run on this machine: the records behind the listings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import importlib_metadata

from stratagem import Component
from stratagem.sdk.catalogue import API_VERSION, GROUP, BrokenPlugin, Catalogue
from stratagem_cli.commands import plugin_groups

OK, BROKEN, LEFT_OUT, NOTHING = "ok", "broken", "left out", "offers nothing"


def accelerator_records(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Describe the accelerators, best first; see docs/reference/cli.md for the keys. Imports torch."""
    records = []
    for component in catalogue.of_kind("accelerator"):
        devices, why_not, found = 0, _why_not(catalogue, component), ""
        if why_not is None:
            try:
                accelerator = component.load()()
                availability = accelerator.availability()
                found = availability.reason
                why_not = None if availability.ok else availability.reason
                devices = accelerator.device_count() if availability.ok else 0
            except (Exception, SystemExit) as error:  # a driver or a vendor library may raise anything
                why_not = _said(error)
        records.append({**_record(component, why_not, found), "devices": devices})
    return records


def strategy_records(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Describe the strategies, best first; see docs/reference/cli.md for the keys. Imports torch."""
    here = [record["name"] for record in accelerator_records(catalogue) if record["runs_here"]]
    records = []
    for component in catalogue.of_kind("strategy"):
        allowed = component.capabilities.accelerators
        why_not = _why_not(catalogue, component)
        on = [name for name in here if "*" in allowed or name in allowed]
        if why_not is None and not on:
            why_not = f"works on {', '.join(allowed)}; available: {', '.join(here) or 'none'}"
        records.append({**_record(component, why_not, f"on {', '.join(on)}"), "accelerators": list(allowed)})
    return records


def plugin_records(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Describe all entry points, broken and left-out ones, too. Imports no torch."""
    broken = {(b.origin.distribution, b.origin.entry_point): b for b in catalogue.broken}
    commands = {}
    for origin, group, error in plugin_groups():
        commands[origin.distribution, origin.entry_point] = group.names()
        if error is not None:
            broken.setdefault((origin.distribution, origin.entry_point), BrokenPlugin(origin, error))
    left_out = {(origin.distribution, origin.entry_point) for origin in catalogue.left_out}
    records = []
    for entry_point in importlib_metadata.entry_points(group=GROUP):
        distribution = entry_point.dist
        name = distribution.name if distribution is not None else entry_point.module
        version = distribution.version if distribution is not None else "0"
        key = (re.sub(r"[-_.]+", "-", name).lower(), entry_point.name)
        failed_here: BrokenPlugin | None = broken.get(key)
        components = [
            each
            for each in catalogue.components
            if (each.origin.distribution, each.origin.entry_point) == key
        ]
        status = OK if components or commands.get(key) else NOTHING
        records.append(
            {
                "distribution": key[0],
                "version": version,
                "entry_point": entry_point.name,
                "status": LEFT_OUT if key in left_out else BROKEN if failed_here else status,
                "error": _said(failed_here.error) if failed_here else "",
                "components": [{"kind": each.kind, "name": each.name} for each in components],
                "commands": commands.get(key, []),
            }
        )
    return sorted(records, key=lambda record: (record["distribution"], record["entry_point"]))


def unloadable(catalogue: Catalogue) -> list[str]:
    """Load every component that has what it requires; return a sentence for each that fails. Slow."""
    sentences = []
    for component in catalogue.components:
        if component.missing():
            continue
        try:
            component.load()
        except (Exception, SystemExit) as error:
            sentences.append(_said(error))
    return sentences


def conflicts(catalogue: Catalogue) -> list[str]:
    """Return a sentence for every name that several distributions offer."""
    sentences = set()
    for component in catalogue.components:
        for name, others in _rivals(catalogue, component):
            owners = sorted([component.origin.distribution, *others])
            sentences.add(f"{component.kind} {name!r} is offered by {' and '.join(owners)}")
    return sorted(sentences)


def _record(component: Component, why_not: str | None, why: str) -> dict[str, Any]:
    return {
        "name": component.name,
        "aliases": list(component.aliases),
        "presets": sorted(component.presets),
        "distribution": component.origin.distribution,
        "version": component.origin.version,
        "summary": component.summary,
        "runs_here": why_not is None,
        "why": why if why_not is None else why_not,
    }


def _why_not(catalogue: Catalogue, component: Component) -> str | None:
    if component.api_version > API_VERSION:
        return f"written for plugin API {component.api_version}; this core has {API_VERSION}"
    missing = component.missing()
    if missing:
        hint = f"; {component.install_hint}" if component.install_hint else ""
        return f"{', '.join(missing)} isn't installed{hint}"
    for name, others in _rivals(catalogue, component):
        if name == component.name:
            return f"{', '.join(others)} offers it, too: choose {component.origin.distribution}:{name}"
    return None


def _rivals(catalogue: Catalogue, component: Component) -> Iterable[tuple[str, list[str]]]:
    """Names of a component that other distributions offer as well, with those."""
    for name in component.names():
        others = {
            other.origin.distribution
            for other in catalogue.components
            if other is not component and other.kind == component.kind and name in other.names()
        }
        if others:
            yield name, sorted(others)


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
