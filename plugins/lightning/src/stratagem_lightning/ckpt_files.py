"""One `.ckpt` file for each checkpoint, as Lightning's, beside the folder that Stratagem loads.

The file is for `torch.load`, and for Lightning's own `load_from_checkpoint` and `fit(ckpt_path=…)`. Given to a
trainer here, it stands for the folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stratagem.errors import ConfigError

VARIABLE = "STRATAGEM_CKPT_FILES"
"""Set to 1 where programs and libraries that stay as they are should find files."""
ENDING = ".ckpt"
FOLDER = ".folder"
"""What the name of a file is followed by in that of its folder."""


def wants_files(given: bool = False) -> bool:
    """Whether files are written: where that was asked for, or the environment says so.

    Raises:
        ConfigError: the variable has another value than 0 and 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1", ""):
        raise ConfigError(f"{VARIABLE}={value!r} must be 1, for .ckpt files, or 0")
    return given or value == "1"


def folder_of(path: Any) -> Any:
    """Return the folder beside a `.ckpt` file that was written here; any other path as it is."""
    if path is None or not os.path.isfile(path):
        return path
    folder = os.fspath(path) + FOLDER
    return folder if os.path.isdir(folder) else path


def facts(trainer: Any) -> dict[str, Any]:
    """Return what a file has of the run's position and hyperparameters, by Lightning's keys, on every rank."""
    found: dict[str, Any] = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
    for owner, prefix in ((trainer.datamodule, "datamodule_"), (trainer.model, "")):
        if owner is not None and owner.hparams:
            found[f"{prefix}hparams_name"] = "kwargs"
            found[f"{prefix}hyper_parameters"] = dict(owner.hparams)
    if trainer.datamodule is not None:
        found["datamodule"] = type(trainer.datamodule).__qualname__
    return found


def write_file(path: str, position: Mapping[str, Any]) -> None:
    """Write the file of a checkpoint, in the place of one before, once its folder is complete.

    Args:
        path: of the file; the folder is there.
        position: what `facts` returned when the folder was written.

    Raises:
        CheckpointError: something in the checkpoint has no place in such a file.
    """
    import torch
    from stratagem_checkpoint import DirectoryCheckpointer
    from stratagem_convert import export_lightning

    from stratagem import LocalCollectives

    folder = path + FOLDER
    state = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(folder, verify=False).state
    data = position.get("datamodule")
    further = {key: value for key, value in position.items() if key != "datamodule"}
    further.update(dict(state.get("user", {})))
    if data is not None and state.get("datamodule"):
        further[data] = dict(state["datamodule"])
    export_lightning(folder, path, further)


def remove_file(folder: str) -> None:
    """Delete the file of a checkpoint whose folder is going; nothing where there is none."""
    path = folder.removesuffix(FOLDER)
    if path != folder and os.path.lexists(path):
        os.unlink(path)
