"""All private names of torch that this package uses, each with the reason.

plugins/convert/tests/test_torch_private.py fails if torch changes one.
"""

from __future__ import annotations

from typing import Any

import torch


def checkpoint_offset(tensor: torch.Tensor) -> int | None:
    """Return the position of a tensor's storage in the file from which it was loaded on the meta device.

    torch's documentation has the attribute (Serialization semantics: "Manipulating checkpoints"), under this name.
    Returns None for a tensor that was loaded in another way.
    """
    return getattr(tensor.untyped_storage(), "_checkpoint_offset", None)


def storage_info(file: str, start: int, size: int) -> Any:
    """Return the record of a chunk's position in a DCP folder's metadata. torch has no public name for it."""
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

torch itself loads the file with an unrestricted unpickler. Ours accepts only these names, dtypes and sizes.
"""
