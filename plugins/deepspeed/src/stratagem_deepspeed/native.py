"""Reads and writes checkpoints in DeepSpeed's own format."""

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
"""The key of `IdleParameters.paused` in the engine's checkpoints."""


def save(engine: Any, folder: str, tag: str | None, paused: dict[str, Scalars | None]) -> None:
    """Write the engine's state; see `DeepSpeedEngine.save_checkpoint`. Collective.

    Args:
        engine: the DeepSpeed engine.
        folder: where to write.
        tag: name of this checkpoint; None uses the engine's number of steps.
        paused: see `IdleParameters`.
    """
    # At stage 3, the engine also reads the empty parameters; it writes its shards separately.
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
    """Read a checkpoint that an engine with as many processes wrote. Collective.

    Args:
        engine: gets the saved state.
        configuration: the engine's.
        folder: the one that `save_checkpoint` was given.
        tag: name of the checkpoint in the folder; None is the newest.
        model_only: leave out the states of the optimizer and the scheduler.
        paused: filled with the value that `save` was given; empty if another program wrote the checkpoint.

    Raises:
        CheckpointError: there is no checkpoint, another number of processes wrote it, or the engine would read
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
