"""`ExportPretrained`: writes what a fit has trained as a folder that `from_pretrained` loads."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from stratagem_checkpoint.agreement import on_first_rank
from stratagem_convert import export_huggingface
from stratagem_trainer.callbacks.base import Callback
from transformers import AutoTokenizer

from stratagem.errors import CheckpointError, ConfigError
from stratagem_huggingface.adapters import adapter_tensors, gathered
from stratagem_huggingface.module import HFModule

if TYPE_CHECKING:
    from stratagem_trainer.view import TrainerView

    from stratagem import Collectives

FOLDER = "pretrained"
_PREFIX = "model/model."
"""What names of the model's own tensors begin with in those of an `HFModule`."""


class ExportPretrained(Callback):
    """Write the trained model at the end of a fit, from the memory of all ranks, as `save_pretrained` does.

    The folder has config.json, generation_config.json, safetensors, and the tokenizer if you give one.
    `AutoModel.from_pretrained` loads it, and `huggingface_hub.upload_folder` uploads it. Of a model with adapters of
    PEFT, it has only the adapters.

    Args:
        path: of the new folder; "pretrained" in the run's folder when None.
        tokenizer: a tokenizer or processor of transformers, or a folder from which one is loaded.

    Raises:
        ConfigError: the module isn't an `HFModule`.
        CheckpointError: there is something at `path`.
    """

    is_left_out_of_fast_dev_run = True

    def __init__(self, path: str | os.PathLike[str] | None = None, tokenizer: Any = None) -> None:
        self.path = None if path is None else os.fspath(path)
        self.tokenizer = tokenizer

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        if stage == "fit" and self.path is not None and os.path.lexists(self.path):
            raise CheckpointError(f"ExportPretrained can't write {self.path!r}: there is something already")

    def on_fit_end(self, trainer: TrainerView, module: Any) -> None:
        if not isinstance(module, HFModule):
            raise ConfigError(f"ExportPretrained got a {type(module).__qualname__}: it exports an HFModule")
        path = self.path
        if path is None:
            if trainer.run_dir is None:
                raise ConfigError(
                    "ExportPretrained has no folder to write to: give path=…, or the run a run_dir"
                )
            path = os.path.join(trainer.run_dir, FOLDER)
        export(trainer.runtime.collectives, trainer.prepared.model_tensors(), module, path, self.tokenizer)


def export(
    collectives: Collectives,
    tensors: Mapping[str, torch.Tensor],
    module: HFModule,
    path: str,
    tokenizer: Any = None,
) -> None:
    """Write a model, or its adapters, as a folder. Collective.

    Args:
        collectives: of the run.
        tensors: as `Prepared.model_tensors` returns them.
        module: to which they belong.
        path: of a new folder, on a disk that all ranks share.
        tokenizer: a tokenizer or processor, or where one is loaded from.

    Raises:
        CheckpointError: there is something at `path`, or writing failed.
    """
    named = {name.removeprefix(_PREFIX): each for name, each in tensors.items() if name.startswith(_PREFIX)}
    if module.has_adapters:
        adapters = gathered(adapter_tensors(module.model, named))
        on_first_rank(collectives, lambda: _write_adapters(module, adapters, path, tokenizer))
        return
    with tempfile.TemporaryDirectory() as small:
        on_first_rank(collectives, lambda: _write_small_files(module, small, tokenizer))
        weights = {f"model/{name}": each for name, each in named.items()}
        export_huggingface(collectives, weights, path, config=small)


def _write_small_files(module: HFModule, folder: str, tokenizer: Any) -> None:
    model = module.model
    config = copy.deepcopy(model.config)
    config.architectures = [module.architecture]
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)
    _write_tokenizer(tokenizer, folder)


def _write_adapters(module: HFModule, adapters: dict[str, torch.Tensor], path: str, tokenizer: Any) -> None:
    os.makedirs(path)
    save_file(adapters, os.path.join(path, "adapter_model.safetensors"), metadata={"format": "pt"})
    config = copy.deepcopy(module.model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(path)
    _write_tokenizer(tokenizer, path)


def _write_tokenizer(tokenizer: Any, folder: str) -> None:
    if tokenizer is None:
        return
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    tokenizer.save_pretrained(folder)
