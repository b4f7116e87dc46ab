"""Summarizes a checkpoint."""

from __future__ import annotations

import math
from typing import Any

from stratagem_checkpoint.checked_files import opened
from stratagem_checkpoint.filesystem import filesystem_for
from stratagem_checkpoint.loading import find_manifest
from stratagem_checkpoint.manifest_text import FORMAT_VERSION
from stratagem_checkpoint.publication import MANIFEST
from stratagem_checkpoint.strict_json import STATE_LIMIT_BYTES, check_limit, parse_json


def describe(path: str) -> dict[str, Any]:
    """Summarize the checkpoint at `path`; reads no tensor and needs no process group.

    Returns:
        JSON values: path, format_version, stratagem_version, torch_version, world_size (ranks that wrote
        it), size_bytes, elements (of all tensors, tied ones once), files (name → bytes), tensors
        (key → dtype, shape and number of chunks), aliases (key → key that has its values) and
        state_keys (the top level of its state).

    Raises:
        CheckpointError: there is none, or it isn't complete.
    """
    filesystem, original_module = filesystem_for(path, MANIFEST)
    folder, manifest = find_manifest(filesystem, original_module, path)
    record = manifest.file("state.json")
    state: Any = {}
    if record is not None:
        with opened(filesystem, folder, record, verify=True) as file:
            check_limit(file.size_bytes, STATE_LIMIT_BYTES, file.shown)
            try:
                state = parse_json(file.read(0, file.size_bytes))
            except ValueError as error:
                raise file.damage(error) from error
            if not isinstance(state, dict):
                raise file.damage(f"it has a {type(state).__name__} where a dict is to be")
    return {
        "path": path,
        "format_version": FORMAT_VERSION,
        "stratagem_version": manifest.stratagem_version,
        "torch_version": manifest.torch_version,
        "world_size": manifest.world_size,
        "size_bytes": sum(record.size_bytes for record in manifest.files),
        "elements": sum(math.prod(tensor.shape) for tensor in manifest.tensors.values()),
        "files": {record.name: record.size_bytes for record in manifest.files},
        "tensors": {
            key: {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "chunks": len(tensor.chunks),
            }
            for key, tensor in manifest.tensors.items()
        },
        "aliases": dict(manifest.aliases),
        "state_keys": sorted(key for key in state if not key.startswith("$")),
    }
