"""One `.ckpt` file for each checkpoint, as Lightning has it, next to the folder that Stratagem loads.

The file is for `torch.load`, and for Lightning's own `load_from_checkpoint` and `fit(ckpt_path=…)`. A trainer of this
package that gets the file's path loads the folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stratagem.errors import ConfigError

VARIABLE = "STRATAGEM_CKPT_FILES"
"""Set it to 1 if unchanged programs and libraries must find files."""
ENDING = ".ckpt"
FOLDER = ".folder"
"""A file's path followed by this is the path of its folder."""


def wants_files(given: bool = False) -> bool:
    """Return whether to write files: if `given`, or if the environment variable says so.

    Raises:
        ConfigError: the variable has another value than 0 or 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1", ""):
        raise ConfigError(f"{VARIABLE}={value!r} must be 1, for .ckpt files, or 0")
    return given or value == "1"


def folder_of(path: Any) -> Any:
    """Return the folder that belongs to a `.ckpt` file written here. Any other path is returned unchanged."""
    if path is None or not os.path.isfile(path):
        return path
    folder = os.fspath(path) + FOLDER
    return folder if os.path.isdir(folder) else path


def facts(trainer: Any) -> dict[str, Any]:
    """Return a file's entries for position and hyperparameters, by Lightning's keys. Called on every rank."""
    found: dict[str, Any] = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
    for owner, prefix in ((trainer.datamodule, "datamodule_"), (trainer.model, "")):
        if owner is not None and owner.hparams:
            found[f"{prefix}hparams_name"] = "kwargs"
            found[f"{prefix}hyper_parameters"] = dict(owner.hparams)
    if trainer.datamodule is not None:
        found["datamodule"] = type(trainer.datamodule).__qualname__
    return found


def write_file(path: str, position: Mapping[str, Any]) -> None:
    """Write or replace the file of a checkpoint whose folder is complete.

    Args:
        path: of the file; its folder exists.
        position: what `facts` returned when the folder was written.

    Raises:
        CheckpointError: the checkpoint has something that can't be in such a file.
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
    """Delete the file of a checkpoint whose folder is being deleted. Does nothing if there is none."""
    path = folder.removesuffix(FOLDER)
    if path != folder and os.path.lexists(path):
        os.unlink(path)
