"""What a text such as "hf:gpt2-folder" stands for: a configuration of transformers, with or without weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from glob import glob
from typing import Any

import transformers

from stratagem.errors import ConfigError

_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    path: str
    """A folder, a config.json, or a name of the Hub."""
    config: Any
    """A `transformers.PretrainedConfig`."""
    has_weights: bool
    """Whether there are weights to load; otherwise they are drawn."""

    @classmethod
    def of(cls, path: str) -> Source:
        """Read the configuration.

        Raises:
            ConfigError: there is none.
        """
        try:
            config = transformers.AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"hf:{path} has no configuration that transformers can read: {reason}; give a folder of "
                "save_pretrained, a config.json, or a name of the Hub"
            ) from error
        has_weights = not os.path.isfile(path)
        if os.path.isdir(path):
            has_weights = any(glob(os.path.join(path, pattern)) for pattern in _WEIGHTS)
        return cls(path, config, has_weights)

    def loaded(self) -> Any:
        """Return the model with its weights, in single precision, as `from_pretrained` gives it."""
        import torch

        return self._class().from_pretrained(self.path, dtype=torch.get_default_dtype())

    def drawn(self) -> Any:
        """Return the model with random weights."""
        return self._class()(self.config)

    def _class(self) -> Any:
        names = getattr(self.config, "architectures", None) or ()
        found = [getattr(transformers, name, None) for name in names]
        if len(found) == 1 and found[0] is not None:
            return found[0]
        if names:
            raise ConfigError(
                f"hf:{self.path} names the architecture {', '.join(names)}, and transformers has no class of this "
                "name: make the model in Python, and pass it to HFModule"
            )
        raise ConfigError(
            f'hf:{self.path} doesn\'t say which class its model has: add "architectures": ["LlamaForCausalLM"], '
            "with your model's class, to its config.json"
        )
