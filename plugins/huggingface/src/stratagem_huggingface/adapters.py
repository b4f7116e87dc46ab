"""Adapters of PEFT around a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from stratagem.errors import ConfigError


def with_adapters(model: Any, peft: Any) -> Any:
    """Return a model with adapters, whose other parameters are frozen; the model itself where `peft` is None.

    Args:
        model: of transformers.
        peft: a `peft.PeftConfig`, or its arguments with its "peft_type".

    Raises:
        ConfigError: PEFT isn't installed, or it refuses the arguments.
    """
    if peft is None:
        return model
    try:
        from peft import PeftConfig, get_peft_config, get_peft_model
    except ImportError as error:
        raise ConfigError(
            'HFModule(peft=…) needs PEFT, which isn\'t installed: pip install "stratagem-huggingface[peft]"'
        ) from error
    if isinstance(peft, Mapping):
        try:
            peft = get_peft_config({**peft})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"HFModule got peft={dict(peft)!r}, which PEFT refuses: {error}; give a peft_type such as LORA, and "
                "arguments of its configuration"
            ) from error
    if not isinstance(peft, PeftConfig):
        raise ConfigError(f"HFModule got peft={peft!r}: pass a peft.PeftConfig, such as peft.LoraConfig(r=8)")
    return get_peft_model(model, peft)


def adapter_tensors(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the adapters among a model's tensors, under the names that PEFT saves them with.

    Args:
        model: of PEFT.
        tensors: of the model, by its own names.
    """
    from peft import get_peft_model_state_dict

    found: dict[str, torch.Tensor] = get_peft_model_state_dict(model, state_dict=dict(tensors))
    return found


def gathered(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return whole tensors in the CPU's memory. Collective where they are DTensors."""
    whole = {}
    for name, each in tensors.items():
        full = each.full_tensor() if isinstance(each, DTensor) else each
        whole[name] = full.detach().to("cpu", copy=True).contiguous()
    return whole
