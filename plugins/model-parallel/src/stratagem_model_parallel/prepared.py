"""What the loop calls per step under model_parallel."""

from __future__ import annotations

from stratagem_mesh import ComposedPrepared


class ModelParallelPrepared(ComposedPrepared):
    """A module whose layers are split among ranks, and then sharded. Every forward is collective."""

    strategy_name = "model_parallel"
    advice = (
        "use them within their module's forward, or choose ddp, or fsdp with auto_wrap_policy=[], by which all "
        "parameters stay gathered throughout a step"
    )
