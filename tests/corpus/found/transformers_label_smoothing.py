"""transformers' Trainer with label smoothing trains models of images and text to repeat the token that they get.

python -m tests.corpus.found.transformers_label_smoothing
"""

from __future__ import annotations

import torch
import transformers
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from tests.corpus.found.one_step import gradients_of, gradients_of_trainer

LENGTH, ROWS, VOCABULARY = 6, 4, 20
SMOOTHING = 1e-6
"""So little that the loss is cross entropy."""


def models() -> tuple[torch.nn.Module, ...]:
    text = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    images = CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=4,
        patch_size=2,
    )
    both = LlavaConfig(vision_config=images, text_config=text, image_token_index=VOCABULARY - 1)
    return LlamaForCausalLM(text), LlavaForConditionalGeneration(both)


def main() -> None:
    torch.manual_seed(0)
    rows = torch.randint(VOCABULARY - 1, (ROWS, LENGTH))
    print(f"transformers {transformers.__version__}, label smoothing, one step over {ROWS} sentences")
    for model in models():
        model(input_ids=rows, labels=rows).loss.backward()
        following = gradients_of(model)
        model.zero_grad()
        cross_entropy(model(input_ids=rows).logits.flatten(0, 1), rows.flatten()).backward()
        same = gradients_of(model)
        model.zero_grad()
        found = gradients_of_trainer(model, rows, label_smoothing_factor=SMOOTHING)
        cosines = [float(cosine_similarity(found, each, 0)) for each in (following, same)]
        print(
            f"{type(model).__name__}: the cosine of the Trainer's gradient is {cosines[0]:.4f} with that of the "
            f"model's own loss, and {cosines[1]:.4f} with that of repeating each token"
        )


if __name__ == "__main__":
    main()
