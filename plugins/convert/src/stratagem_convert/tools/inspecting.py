"""Summarize the content of a checkpoint, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stratagem_checkpoint.filesystem import filesystem_for
from stratagem_checkpoint.loading import find_manifest
from stratagem_checkpoint.manifest import Manifest
from stratagem_checkpoint.manifest_text import FORMAT_VERSION
from stratagem_checkpoint.publication import MANIFEST
from stratagem_checkpoint.state_files import read_state

from stratagem_convert.formats.converting import format_of, read_weights

ROWS = 12
"""Number of tensors to show by default."""


def summarize(path: str, key: str | None = None) -> dict[str, Any]:
    """Summarize a checkpoint of any format. Reads no tensors.

    Returns:
        JSON values: path, format, facts (name → text), size_bytes (of tensors), tensors (name → dtype, shape),
        aliases, left_out (other content, as clauses); and of our own checkpoints: files (name → bytes),
        resume (exact: clauses, inexact: what → why), which is None if the run didn't save it.

    Raises:
        CheckpointError, ConfigError: as `read_weights`.
    """
    if key is not None or format_of(path) != "stratagem":
        weights = read_weights(path, key)
        return {
            "path": path,
            "format": weights.format,
            "facts": {**weights.facts, **({"with": str(weights.training)} if weights.training else {})},
            "size_bytes": weights.size_bytes,
            "tensors": {
                name: {"dtype": _dtype(tensor.dtype), "shape": list(tensor.shape)}
                for name, tensor in weights.tensors.items()
            },
            "aliases": dict(weights.aliases),
            "left_out": list(weights.left_out),
            "files": {},
            "resume": None,
        }
    filesystem, name = filesystem_for(path, MANIFEST)
    folder, manifest = find_manifest(filesystem, name, path)
    state = read_state(filesystem, folder, "state", manifest, verify=True)
    return {
        "path": path,
        "format": "stratagem",
        "facts": _facts(state, manifest),
        "size_bytes": sum(each.dtype.itemsize * math.prod(each.shape) for each in manifest.tensors.values()),
        "tensors": {
            key: {"dtype": _dtype(tensor.dtype), "shape": list(tensor.shape)}
            for key, tensor in manifest.tensors.items()
        },
        "aliases": dict(manifest.aliases),
        "left_out": [],
        "files": {record.name: record.size_bytes for record in manifest.files},
        "resume": _resume(state),
    }


def _facts(state: Mapping[str, Any], manifest: Manifest) -> dict[str, str]:
    facts = {}
    progress = state.get("progress")
    if isinstance(progress, Mapping):
        facts.update({name: str(progress[name]) for name in ("step", "epoch", "batch") if name in progress})
    for name in ("strategy", "module", "kind", "converted_from"):
        if state.get(name):
            facts[name] = str(state[name])
    facts["ranks"] = str(manifest.world_size)
    facts["stratagem"], facts["torch"] = manifest.stratagem_version, manifest.torch_version
    facts["version"] = str(FORMAT_VERSION)
    return facts


def _resume(state: Mapping[str, Any]) -> dict[str, Any] | None:
    if state.get("kind") == "weights":
        return {"exact": [], "inexact": {"the run": "it has only weights, from which no run can resume"}}
    resume = state.get("resume")
    exact, inexact = (
        resume.get(each) if isinstance(resume, Mapping) else None for each in ("exact", "inexact")
    )
    if not isinstance(exact, list) or not isinstance(inexact, Mapping):
        return None
    return {
        "exact": [str(each) for each in exact],
        "inexact": {str(what): str(why) for what, why in inexact.items()},
    }


def lines(summary: Mapping[str, Any], show_all: bool = False) -> Iterator[str]:
    """Yield the lines of a summary: one screen, or all tensors."""
    yield f"{summary['path']}: {summary['format']}"
    facts = summary["facts"]
    if facts:
        yield "  " + ", ".join(f"{name} {value}" for name, value in facts.items())
    tensors: Mapping[str, Mapping[str, Any]] = summary["tensors"]
    count = sum(math.prod(each["shape"]) for each in tensors.values())
    yield f"  {len(tensors):,} tensors, {count:,} values, {size(summary['size_bytes'])}" + (
        f", in {len(summary['files'])} files" if summary["files"] else ""
    )
    for part, names in _parts(tensors).items():
        if part:
            yield f"    {part:<12}{len(names):,} tensors"
    shown = list(tensors) if show_all else list(tensors)[:ROWS]
    width = max(map(len, shown), default=0)
    for name in shown:
        dtype, shape = tensors[name]["dtype"], tensors[name]["shape"]
        yield f"  {name:<{width}}  {dtype:<9} {'×'.join(map(str, shape)) or 'scalar'}"
    if len(tensors) > len(shown):
        yield f"  … and {len(tensors) - len(shown):,} more: --all shows them"
    aliases: Mapping[str, str] = summary["aliases"]
    for name in list(aliases) if show_all else list(aliases)[:3]:
        yield f"  {name} is tied to {aliases[name]}"
    for each in summary["left_out"]:
        yield f"  not weights, so not converted: {each}"
    yield from _resume_lines(summary)


def _resume_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    resume = summary["resume"]
    if resume is None:
        if summary["format"] == "stratagem":
            yield "resumes: unknown; it was written before runs saved that, or by your own training loop"
        return
    for what in resume["exact"]:
        yield f"resumes exactly: {what}"
    for what, why in resume["inexact"].items():
        yield f"doesn't resume exactly: {what}: {why}"


def _parts(tensors: Mapping[str, Any]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for name in tensors:
        part = name.split("/", 1)[0] if "/" in name else ""
        parts.setdefault(part, []).append(name)
    return parts if len(parts) > 1 else {}


def size(size_bytes: int) -> str:
    """Return a number of bytes as text for people."""
    amount, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:,.1f} {unit}" if unit != "bytes" else f"{size_bytes} bytes"


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
