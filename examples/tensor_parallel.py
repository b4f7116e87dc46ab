"""Tensor parallelism: the language model of bytes, each of whose layers is split among ranks.

stratagem fit examples/tensor_parallel.py:SplitByteModel --max-steps 100 --strategy model_parallel \
  --accelerator cpu --devices 2
"""

from __future__ import annotations

from typing import Any

from language_model import ByteModel

import stratagem


class SplitByteModel(ByteModel):
    """Says which layers a rank has some of the outputs of ("colwise"), and which some of the inputs ("rowwise").

    A rank computes its share of the heads, and of the wide layer between `up` and `down`; the sums over ranks
    that follow `join` and `down` are all that is sent. Under other strategies nothing is split.
    """

    def parallelize(self, mesh: Any) -> dict[str, str]:
        return {
            "blocks.*.query": "colwise",
            "blocks.*.key": "colwise",
            "blocks.*.value": "colwise",
            "blocks.*.join": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
        }

    def configure_callbacks(self) -> list[stratagem.Callback]:
        return [WhoHasWhat()]


class WhoHasWhat(stratagem.Callback):
    """Prints how many of the model's numbers each rank keeps."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        # A DTensor knows the shard of it that is here.
        mine = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in module.parameters())
        total = sum(p.numel() for p in module.parameters())
        for rank, kept in enumerate(trainer.collectives.gather_objects(mine) or []):
            if trainer.is_main:
                print(f"rank {rank} keeps {kept:,} of {total:,} parameters", flush=True)
