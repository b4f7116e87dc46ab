"""Starting an engine."""

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
    """Return DeepSpeed's engine over a module whose parameters are in their place. Collective.

    Args:
        library: the imported engine's package.
        computed: what it calls.
        stage: ZeRO's.
        config: the engine's, complete.
        client: the user's optimizer; None where the engine makes one, or nothing is trained.
        training: whether anything is.
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
