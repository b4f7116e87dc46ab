"""The components of stratagem-report: the extension `record` and the command `report`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Describe the extension `record`, for `--use record`."""
    return [
        Component(
            "extension",
            "record",
            "stratagem_report.recording.extension:Record",
            "records where each rank's time goes, for `stratagem report`, and names slow ranks",
        )
    ]


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command, which is imported when it is called."""
    cli.add_lazy("report", "stratagem_report.commands.report:report")
