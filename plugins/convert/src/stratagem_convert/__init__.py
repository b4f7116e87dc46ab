"""Convert checkpoints between formats: safetensors, Hugging Face, `torch.save`, DCP, Lightning, DeepSpeed.

The names are imported when they are first used, so that importing this package costs no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_convert.formats.ckpt_file import export_lightning
    from stratagem_convert.formats.exporting import export_huggingface

__all__ = ["export_huggingface", "export_lightning"]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".formats.ckpt_file": "export_lightning",
            ".formats.exporting": "export_huggingface",
        },
    )
