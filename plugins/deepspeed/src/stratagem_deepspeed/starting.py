"""Starts an engine."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from stratagem_deepspeed import output
from stratagem_deepspeed.construction import number_modules
from stratagem_deepspeed.swapping import align_gradients


def start_engine(
    library: Any,
    computed: nn.Module,
    stage: int,
    config: dict[str, Any],
    client: Optimizer | None,
    training: bool,
) -> Any:
    """Return a DeepSpeed engine around a module whose parameters are on their device or sharded. Collective.

    Args:
        library: the imported engine's package.
        computed: the module that the engine calls.
        stage: the ZeRO stage.
        config: the engine's complete configuration.
        client: the user's optimizer; None where the engine makes one, or nothing is trained.
        training: whether the run trains.
    """
    with output.kept():
        if not training:
            config = {key: value for key, value in config.items() if key not in ("optimizer", "scheduler")}
        engine, _, _, _ = library.initialize(
            model=computed,
            optimizer=client,
            model_parameters=None
            if client is not None
            else [p for p in computed.parameters() if p.requires_grad],
            config=config,
            dist_init_required=False,
        )
        if stage == 3:
            number_modules(computed)
            align_gradients(engine.optimizer)
        library.checkpointing.configure(None, deepspeed_config=config)
    return engine
