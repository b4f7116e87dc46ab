"""`stratagem places`: where runs can be submitted to."""

from __future__ import annotations

from typing import Any

import click
from stratagem_cli.listing import as_json, print_json, print_table

from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue


@click.command(
    epilog="\b\nExamples:\n  stratagem places",
)
@as_json
def places(as_json: bool) -> None:
    """List the places that --on takes, installed and named in places.yaml, and why one can't be used here."""
    records = place_records()
    if as_json:
        print_json(records)
        return
    rows = [
        [each["name"], "yes" if each["usable_here"] else "no", each["why"], each["from"], each["summary"]]
        for each in records
    ]
    print_table(["name", "usable here", "why not", "from", "summary"], rows)


def place_records() -> list[dict[str, Any]]:
    """Describe the installed places, and those of the files.

    Raises:
        ConfigError: a file of named places can't be read.
    """
    from stratagem_places.named import named_places

    records = []
    components = {component.name: component for component in load_catalogue().of_kind("place")}
    for component in components.values():
        records.append(_record(component.name, {}, str(component.origin), component.summary, component.name))
    for file in named_places():
        for place, names in file.places.items():
            summary = components[place].summary if place in components else ""
            records += [_record(place, names[name], file.path, summary, f"{place}:{name}") for name in names]
    return records


def _record(place: str, options: Any, origin: str, summary: str, name: str) -> dict[str, Any]:
    from stratagem_places.named import make

    try:
        reason = make(place, options).place.why_not()
    except UsageError as error:
        reason = str(error)
    return {
        "name": name,
        "usable_here": reason is None,
        "why": reason or "",
        "from": origin,
        "summary": summary,
    }
