"""`stratagem doctor`: whether this machine and what is installed on it are in order."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import click

from stratagem.errors import StratagemError, bytes_text
from stratagem.sdk.catalogue import Catalogue, load_catalogue
from stratagem.sdk.selection import choose_environment
from stratagem_cli.listing import as_json, print_json, print_table


@click.command(
    epilog="\b\nExamples:\n  stratagem doctor",
)
@as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Examine this machine and what is installed; exit code 1 where something is broken."""
    report = examine(load_catalogue())
    if as_json:
        print_json(report)
    else:
        click.echo(verdict(report))
        rows = [[key.replace("_", " "), _shown(value)] for key, value in report.items() if key != "problems"]
        print_table(["", ""], [row if row[0][-6:] != " bytes" else _in_gib(*row) for row in rows])
    if report["problems"]:
        ctx.exit(1)


def verdict(report: Mapping[str, Any]) -> str:
    """Return what a report comes to: its problems, or that there is none and what runs here."""
    problems = report["problems"]
    if problems:
        return "\n  ".join([f"{len(problems)} problem{'s' * (len(problems) != 1)}:", *problems])
    here = [each["name"] for each in report["accelerators"] if each["runs_here"]]
    return f"all is in order; runs here on {', '.join(here)}"


def examine(catalogue: Catalogue) -> dict[str, Any]:
    """Collect the report; docs/reference/cli.md has the keys. Imports torch and every plugin's target."""
    import torch

    from stratagem_cli.survey import BROKEN, accelerator_records, conflicts, plugin_records, unloadable

    plugins = plugin_records(catalogue)
    environment, environment_problem = _environment(catalogue)
    problems = [f"{p['distribution']}: {p['error']}" for p in plugins if p["status"] == BROKEN]
    problems += [*unloadable(catalogue), *conflicts(catalogue), *environment_problem]
    accelerators = [
        {"name": a["name"], "runs_here": a["runs_here"], "devices": a["devices"], "why": a["why"]}
        for a in accelerator_records(catalogue)
    ]
    if not any(accelerator["runs_here"] for accelerator in accelerators):
        problems.append("no accelerator is available here: pip install stratagem-cpu")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "os": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "shared_memory_bytes": _shared_memory_bytes(),
        "open_files_limit": _open_files_limit(),
        "environment": environment,
        "accelerators": accelerators,
        "process_group_backends": _backends(),
        "plugins": {p["distribution"]: p["version"] for p in plugins},
        "versions_digest": versions_digest(catalogue),
        "problems": problems,
    }


def versions_digest(catalogue: Catalogue) -> str:
    """Equal on machines that have the same plugins, torch and Python, in the same versions."""
    import torch

    python = ".".join(map(str, sys.version_info[:2]))
    versions = {**catalogue.distributions, "torch": torch.__version__, "python": python}
    return sha256(repr(sorted(versions.items())).encode()).hexdigest()[:16]


def _environment(catalogue: Catalogue) -> tuple[dict[str, Any], list[str]]:
    try:
        here = choose_environment(catalogue, "auto", os.environ)
        return {
            "name": here.name,
            "why": here.why,
            "rank": here.value.global_rank,
            "world_size": here.value.world_size,
        }, []
    except StratagemError as error:
        return {"name": "", "why": str(error), "rank": 0, "world_size": 1}, [str(error)]


def _backends() -> list[str]:
    from torch import distributed

    if not distributed.is_available():
        return []
    found = {"gloo": distributed.is_gloo_available, "mpi": distributed.is_mpi_available}
    found |= {"nccl": distributed.is_nccl_available, "ucc": distributed.is_ucc_available}
    found |= {"xccl": getattr(distributed, "is_xccl_available", lambda: False)}
    return [name for name, is_available in found.items() if is_available()]


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _shared_memory_bytes() -> int | None:
    """Size of the folder through which data loaders' processes pass batches."""
    return shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None


def _open_files_limit() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _in_gib(name: str, size: str) -> list[str]:
    return [name.removesuffix(" bytes"), bytes_text(int(size)) if size.isdigit() else size]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(_shown_item(item) for item in value) or "none"
    return "unknown" if value is None else str(value)


def _shown_item(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return f"{item['name']}: {'yes' if item['runs_here'] else 'no'}, {item['why']}"
