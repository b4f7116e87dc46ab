"""Detect the format of a path, and read and write weights in each format."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from stratagem_checkpoint.publication import MANIFEST
from stratagem_checkpoint.regular_files import require_regular

from stratagem.errors import CheckpointError, ConfigError
from stratagem_convert.formats import dcp, deepspeed, lightning, own, safetensors_files, torch_files
from stratagem_convert.formats.stored import Weights

FORMATS: Mapping[str, str] = {
    "stratagem": "a checkpoint directory of Stratagem",
    "safetensors": "one safetensors file",
    "huggingface": "a folder like that of transformers' save_pretrained",
    "torch": "a state dict, written with torch.save",
    "lightning": "a .ckpt of Lightning",
    "dcp": "a folder of torch.distributed.checkpoint",
    "deepspeed": "a folder for DeepSpeed's load_checkpoint, with weights only",
}
"""Name of a format → what is written."""
_SUFFIXES = {
    ".safetensors": "safetensors",
    ".ckpt": "lightning",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
}
TRAINING_BY_DEFAULT = ("stratagem", "lightning")
TRAINING_IF_ASKED = ("torch", "dcp")
"""Formats that can hold optimizers' states. Those of the second tuple have another layout with only weights."""
_WITH_KEY = ("torch", "lightning", "dcp")
SHARD_BYTES = 5 * 10**9
"""Default size of a shard; it is that of transformers."""


@dataclass(frozen=True)
class Writing:
    """How a checkpoint is written.

    Attributes:
        shard_bytes: maximum size of a file of "huggingface".
        config: for "huggingface": a folder whose config.json and tokenizer files are copied.
        training: whether to convert optimizers' states, schedules and progress; None is the default of the format.
    """

    shard_bytes: int = SHARD_BYTES
    config: str | None = None
    training: bool | None = None


def format_of(path: str) -> str:
    """Return the name of a path's format, by the files there. Reads no tensor.

    Raises:
        CheckpointError: there is nothing, or its format is unknown.
    """
    if own.is_directory(path):
        return "stratagem"
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, dcp.METADATA)):
            return "dcp"
        if any(
            os.path.exists(os.path.join(path, name))
            for name in (safetensors_files.INDEX, safetensors_files.SINGLE)
        ):
            return "huggingface"
        if deepspeed.folder_of(path) is not None:
            return "deepspeed"
        raise CheckpointError(
            f"{path} is a folder of no known format: it has no {MANIFEST}, {dcp.METADATA}, "
            f"{safetensors_files.SINGLE} or *_model_states.pt; pass the folder that has one"
        )
    if not os.path.exists(path):
        raise CheckpointError(f"there is no checkpoint at {path}; check the path")
    require_regular(path)
    try:
        if path.endswith(".safetensors") or safetensors_files.looks_like_one(path):
            return "safetensors"
        if zipfile.is_zipfile(path) or os.path.splitext(path)[1] in _SUFFIXES:
            return "torch"
    except OSError as error:  # for example /proc/self/mem, which can't be read at its start
        raise CheckpointError(f"{path} can't be read: {error.strerror}; check the path") from error
    raise CheckpointError(
        f"{path} is a file of no known format: pass a .safetensors file, or one that torch.save has written"
    )


def read_weights(path: str, key: str | None = None, in_order: bool = False) -> Weights:
    """Open the weights of a checkpoint of any format. Runs no code of it, and reads no tensor.

    Args:
        path: a file, a folder, or the URL of one of our own checkpoints.
        key: the entry that has the weights, in files of torch.save and DCP folders.
        in_order: for files of torch.save: see `read_state_dict`.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it has something other than tensors.
        ConfigError: the format has no keys, or has its own names of parameters.
    """
    name = format_of(path)
    if in_order and name != "torch":
        raise ConfigError(
            f"--in-order is for files of torch.save, but {path} has the format {name}: leave it out"
        )
    if key is not None and name not in _WITH_KEY:
        raise ConfigError(
            f"--key is for {', '.join(_WITH_KEY)}, but {path} has the format {name}: leave it out"
        )
    if name in ("torch", "lightning"):
        return torch_files.read_state_dict(path, key, in_order)
    if name == "dcp":
        return dcp.read_folder(path, key)
    readers: Mapping[str, Callable[[str], Weights]] = {
        "stratagem": own.read_directory,
        "safetensors": safetensors_files.read_file,
        "huggingface": safetensors_files.read_folder,
        "deepspeed": deepspeed.read_folder,
    }
    return readers[name](path)


def target_format(target: str, name: str | None) -> str:
    """Return the format of `target`: the given one, or that of its suffix.

    Raises:
        ConfigError: no format is given, and the suffix is unknown.
    """
    known = _SUFFIXES.get(os.path.splitext(target)[1])
    if name is None and known is None:
        raise ConfigError(f"{target} has no known suffix: choose a format with --to, of {', '.join(FORMATS)}")
    return str(name or known)


def _with_training(weights: Weights, name: str, asked: bool | None) -> Weights:
    """Drop the training if it isn't to be converted, and list it in `left_out`.

    Args:
        weights: the weights that were read.
        name: name of the target's format.
        asked: whether to convert the training; None is the default of the format.

    Raises:
        ConfigError: the training is to be converted, but the format can't hold it.
        CheckpointError: the training is to be converted, but there is none.
    """
    places = (*TRAINING_BY_DEFAULT, *TRAINING_IF_ASKED)
    if asked and name not in places:
        raise ConfigError(
            f"{name} can't hold optimizers' states: leave out --training, or choose {', '.join(places)}"
        )
    training = weights.training
    if training is None:
        if asked:
            raise CheckpointError(
                f"{weights.path} has no optimizers' states that can be converted: leave out --training"
                + "".join(f"; left out: {each}" for each in weights.left_out)
            )
        return weights
    if asked or (asked is None and name in TRAINING_BY_DEFAULT):
        return weights
    count = sum(len(each.tensors()) for each in training.optimizers)
    hint = ": --training converts them" if name in places and asked is None else ""
    left_out = f"{count} tensors of optimizers' states, learning rate schedules and progress{hint}"
    return replace(weights, training=None, left_out=[left_out, *weights.left_out])


def write_weights(weights: Weights, target: str, name: str, how: Writing) -> Weights:
    """Write weights in a format, with their training if they have one. If writing fails, nothing is left.

    An existing `target` is never replaced.

    Returns:
        What was written, with `left_out`.

    Raises:
        ConfigError: `target` exists, or the format lacks an option.
        CheckpointError: the format can't hold one of the tensors, there is no training, or writing failed.
    """
    weights = _with_training(weights, name, how.training)
    if how.config is not None and name != "huggingface":
        raise ConfigError(f"--hf-config is for huggingface, but {target} becomes {name}: leave it out")
    if not weights.tensors:
        raise CheckpointError(f"{weights.path} has no tensors of a model: nothing is written")
    if name == "stratagem":
        if os.path.lexists(target):
            raise _taken(target)
        try:
            own.write_directory(weights, target)
        except OSError as error:
            raise _unwritable(target, error) from error
        return weights
    if "://" in target:
        raise ConfigError(
            f"{target} is a URL, but {name} can only be written to local paths: convert here, and copy it"
        )
    with in_one_step(target, is_folder=name in ("huggingface", "dcp", "deepspeed")) as path:
        if name == "huggingface":
            safetensors_files.write_folder(weights, path, how.shard_bytes, how.config)
            return weights
        writers: Mapping[str, Callable[[Weights, str], None]] = {
            "safetensors": safetensors_files.write_file,
            "torch": torch_files.write_state_dict,
            "lightning": lightning.write_checkpoint,
            "dcp": dcp.write_folder,
            "deepspeed": deepspeed.write_folder,
        }
        writers[name](weights, path)
    return weights


@contextmanager
def in_one_step(target: str, is_folder: bool) -> Iterator[str]:
    """Yield a temporary path next to `target`, which is renamed to `target` at the end, or removed after an error.

    Raises:
        ConfigError: `target` exists.
        CheckpointError: the context raised an OSError.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target):
        raise _taken(target)
    folder, name = os.path.split(target)
    beside = os.path.join(folder, f".{name}.tmp-{secrets.token_hex(8)}")
    try:
        os.makedirs(folder, exist_ok=True)
        if is_folder:
            os.mkdir(beside)
        yield beside
        os.rename(beside, target)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        with suppress(OSError):
            os.unlink(beside)


def _taken(target: str) -> ConfigError:
    return ConfigError(f"{target} exists, and isn't replaced: choose another path or move it away")


def _unwritable(target: str, error: Exception) -> CheckpointError:
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return CheckpointError(f"{target} can't be written: {reason}; choose another place")
