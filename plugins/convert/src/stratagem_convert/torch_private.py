"""What this package uses of torch's private names, each with the reason.

plugins/convert/tests/test_torch_private.py fails when one changes.
"""

from __future__ import annotations

from typing import Any

import torch


def checkpoint_offset(tensor: torch.Tensor) -> int | None:
    """Where the storage of a tensor begins in the file that it was loaded from on the meta device.

    torch's documentation has the attribute (Serialization semantics: "Manipulating checkpoints"), with this name.
    None for a tensor that was loaded otherwise.
    """
    return getattr(tensor.untyped_storage(), "_checkpoint_offset", None)


def storage_info(file: str, start: int, size: int) -> Any:
    """Where in a DCP folder a chunk lies, as its metadata says it; torch has no public name for the record."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(file, start, size)


DCP_METADATA: frozenset[str] = frozenset(
    {
        *(
            f"torch.distributed.checkpoint.metadata.{name}"
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.serialization._get_layout",
    }
)
"""Classes and functions that the pickled `.metadata` of a DCP folder names: records, an enum and a look-up.

torch itself loads the file with an unrestricted unpickler; ours takes these names, dtypes and sizes alone.
"""
