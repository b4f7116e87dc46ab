"""Safe, portable checkpoints: a directory of safetensors and JSON. Loading one runs no code from it.

Names are imported at their first use, so that importing this package doesn't import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_checkpoint.agreement import on_every_rank
    from stratagem_checkpoint.changed_weights import load_changed, load_weights
    from stratagem_checkpoint.description import describe
    from stratagem_checkpoint.directory import DirectoryCheckpointer
    from stratagem_checkpoint.initial_weights import InitialWeights, WeightsReport
    from stratagem_checkpoint.loading import DirectoryReader
    from stratagem_checkpoint.node_folders import file_sizes, open_node_folder, write_node_folder
    from stratagem_checkpoint.publication import MANIFEST

__all__ = [
    "MANIFEST",
    "DirectoryCheckpointer",
    "DirectoryReader",
    "InitialWeights",
    "WeightsReport",
    "describe",
    "file_sizes",
    "load_changed",
    "load_weights",
    "on_every_rank",
    "open_node_folder",
    "write_node_folder",
]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".changed_weights": "load_changed load_weights",
            ".agreement": "on_every_rank",
            ".description": "describe",
            ".directory": "DirectoryCheckpointer",
            ".initial_weights": "InitialWeights WeightsReport",
            ".loading": "DirectoryReader",
            ".node_folders": "file_sizes open_node_folder write_node_folder",
            ".publication": "MANIFEST",
        },
    )
