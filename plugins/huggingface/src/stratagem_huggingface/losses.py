"""How many labels the loss of a model of transformers is the mean of: a step divides by those of all its batches.

Which models shift labels, and whose loss leaves out the labels that are -100, is known from transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stratagem.errors import ConfigError, DataError

_IGNORED = -100
_SHIFTED_LOSSES = {"ForCausalLM", "ForConditionalGeneration"}
_OTHER_LOSSES = {
    "ForAudioClassification",
    "ForImageClassification",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForVideoClassification",
}
_SHIFTED_MODELS = {
    "BertGenerationDecoder",
    "BertLMHeadModel",
    "CTRLLMHeadModel",
    "GPT2LMHeadModel",
    "OpenAIGPTLMHeadModel",
    "ReformerModelWithLMHead",
}
"""Causal models without a `loss_type` of their own."""
_SHIFTED_BEFORE = {
    "BartForCausalLM",
    "BigBirdPegasusForCausalLM",
    "BlenderbotForCausalLM",
    "BlenderbotSmallForCausalLM",
    "CpmAntForCausalLM",
    "MBartForCausalLM",
    "MarianForCausalLM",
    "MvpForCausalLM",
    "PLBartForCausalLM",
    "PegasusForCausalLM",
    "TrOCRForCausalLM",
    "WhisperForCausalLM",
}
"""Decoders that compare each output with the label at its own place: their inputs were shifted."""
_OTHER_LABELS = {
    "MoshiForCausalLM",
    "MoshiForConditionalGeneration",
    "MusicgenForCausalLM",
    "MusicgenForConditionalGeneration",
    "MusicgenMelodyForCausalLM",
    "MusicgenMelodyForConditionalGeneration",
}
"""Models that set further labels to -100 themselves."""


class CountedLabels:
    """Counts the labels that a model's loss is the mean of.

    Args:
        model: of transformers, with adapters or without; before a strategy replaces its classes.
    """

    def __init__(self, model: nn.Module) -> None:
        inner: Any = getattr(model, "get_base_model", lambda: model)()
        self._model_name = type(inner).__name__
        loss = getattr(inner, "loss_type", None)
        is_whole = self._model_name in _SHIFTED_BEFORE or getattr(
            getattr(inner, "config", None), "is_encoder_decoder", False
        )
        is_causal = loss in _SHIFTED_LOSSES or self._model_name in _SHIFTED_MODELS
        self._is_known = (is_causal or loss in _OTHER_LOSSES) and self._model_name not in _OTHER_LABELS
        self._is_shifted = is_causal and not is_whole

    def of(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return how many labels count: an int64 without dims, on the device of the labels.

        Those that are -100 don't, and the first of a causal language model doesn't: it predicts the next token.

        Raises:
            ConfigError: it isn't known which labels the model's loss is the mean of.
            DataError: the batch has no tensor of labels.
        """
        if not self._is_known:
            raise ConfigError(
                f"weigh_losses=True doesn't know which labels the loss of {self._model_name} is the mean of: "
                "override HFModule.weight_of, or leave weigh_losses out"
            )
        labels = batch.get("shift_labels", batch.get("labels"))
        if not isinstance(labels, torch.Tensor):
            raise DataError(
                f"weigh_losses=True counts labels, and a batch with {', '.join(map(str, batch))} has no tensor "
                "`labels`: give it one, or leave weigh_losses out"
            )
        if labels.is_floating_point():  # targets of a regression, all of which count
            return torch.tensor(labels.numel(), device=labels.device)
        if self._is_shifted and "shift_labels" not in batch:
            labels = labels[..., 1:]
        return labels.ne(_IGNORED).sum()
