"""Checkpoints in DeepSpeed's own format, for people who have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem import CheckpointError
from stratagem_deepspeed import output
from stratagem_deepspeed.deepspeed_private import as_plain_tensors

if TYPE_CHECKING:
    from stratagem_deepspeed.configuration import Configuration
    from stratagem_deepspeed.masters import Scalars


PAUSED = "stratagem_paused"
"""The key under which the engine's checkpoints have `IdleParameters.paused`."""


def save(engine: Any, folder: str, tag: str | None, paused: dict[str, Scalars | None]) -> None:
    """Write what the engine has; see `DeepSpeedEngine.save_checkpoint`. Collective.

    Args:
        engine: that has it.
        folder: where to.
        tag: of this checkpoint; by the engine's steps when None.
        paused: see `IdleParameters`.
    """
    # The engine reads a module that is empty at stage 3, and writes its parts beside that.
    with output.kept(), as_plain_tensors():
        engine.save_checkpoint(folder, tag=tag, client_state={PAUSED: paused})


def load(
    engine: Any,
    configuration: Configuration,
    folder: str,
    tag: str | None,
    model_only: bool,
    paused: dict[str, Scalars | None],
) -> None:
    """Read what an engine of as many processes has written. Collective.

    Args:
        engine: to be brought to the saved state.
        configuration: the engine's.
        folder: what `save_checkpoint` was given.
        tag: which checkpoint of those in the folder; the newest when None.
        model_only: leave out the optimizer's states and the scheduler's.
        paused: gets what `save` was given; nothing where another program wrote it.

    Raises:
        CheckpointError: there is none, it is of another number of processes, or the engine would read
            it wrongly.
    """
    if configuration.offload_optimizer == "nvme" and not model_only:
        raise CheckpointError(
            "deepspeed reads its own checkpoints wrongly into an optimizer on nvme, without an error: load a "
            "checkpoint of Stratagem, offload to cpu, or load the weights alone"
        )
    if tag is None:
        newest = Path(folder, "latest")
        if not newest.is_file():
            raise CheckpointError(f"{folder} has no file 'latest', so that no tag is known: give the tag")
        tag = newest.read_text(encoding="utf-8").strip()
    there = Path(folder, tag)
    if not there.is_dir():
        raise CheckpointError(f"there is no checkpoint {tag!r} in {folder}: check the folder and the tag")
    writers = {path.name.partition("_mp_rank_")[0] for path in there.glob("*zero_pp_rank_*_optim_states.pt")}
    universal = bool((configuration.tree.get("checkpoint") or {}).get("load_universal"))
    ranks = engine.dp_world_size
    if configuration.stage and not universal and not model_only and len(writers) != ranks:
        raise CheckpointError(
            f"{there} was written by {len(writers)} processes with ZeRO, and this run has {ranks}: start as many, "
            "or convert it by `python -m deepspeed.checkpoint.ds_to_universal` and set checkpoint.load_universal "
            "in config"
        )
    with output.kept(), as_plain_tensors():
        found, client_state = engine.load_checkpoint(
            folder,
            tag=tag,
            load_module_only=model_only,
            load_optimizer_states=not model_only,
            load_lr_scheduler_states=not model_only,
        )
    if found is None:
        raise CheckpointError(
            f"deepspeed found nothing that it could read in {there}: check folder and stage"
        )
    if not model_only:
        paused.clear()
        paused.update((client_state or {}).get(PAUSED, {}))
