"""transformers' Trainer counts labels that GPT-2 doesn't predict, and trains with a smaller loss and gradient.

python -m tests.corpus.found.transformers_first_label
"""

from __future__ import annotations

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.corpus.found.one_step import gradients_of, gradients_of_trainer

LENGTH, ROWS = 6, 4


def models() -> tuple[torch.nn.Module, ...]:
    sizes = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return (
        GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, **sizes, **dropout)),
        LlamaForCausalLM(LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, **sizes)),
    )


def main() -> None:
    torch.manual_seed(0)
    rows = torch.randint(20, (ROWS, LENGTH))
    print(f"transformers {transformers.__version__}, one step over {ROWS} sentences of {LENGTH} tokens")
    for model in models():
        model(input_ids=rows, labels=rows).loss.backward()
        expected = gradients_of(model)
        model.zero_grad()
        ratio = float(gradients_of_trainer(model, rows).norm() / expected.norm())
        name = type(model).__name__
        print(f"{name}: the Trainer's gradient is {ratio:.4f} of that of the model's own loss")


if __name__ == "__main__":
    main()
