"""transformers' Trainer adds the auxiliary loss of a mixture of experts once for each micro-batch of a step.

python -m tests.corpus.found.transformers_auxiliary_loss
"""

from __future__ import annotations

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM

from tests.corpus.found.one_step import gradients_of_trainer

LENGTH, ROWS = 6, 4


def make_model(coefficient: float) -> MixtralForCausalLM:
    torch.manual_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_local_experts=4,
            output_router_logits=True,
            router_aux_loss_coef=coefficient,
        )
    )


def main() -> None:
    print(f"transformers {transformers.__version__}, MixtralForCausalLM, one step over the same sentence")
    sentence = torch.randint(20, (LENGTH,), generator=torch.Generator().manual_seed(1))
    for micro_batches in (1, 2, 4):
        # Of one sentence, so that the mean over a step doesn't depend on the number of its micro-batches.
        rows = sentence.expand(ROWS * micro_batches, LENGTH)
        with_it, without = (
            gradients_of_trainer(make_model(each), rows, micro_batches) for each in (0.1, 0.0)
        )
        auxiliary = with_it - without
        if micro_batches == 1:
            expected = auxiliary
        ratio = float(auxiliary @ expected / (expected @ expected))
        print(f"{micro_batches} micro-batches: the auxiliary loss's gradient is {ratio:.4f} of that of one")


if __name__ == "__main__":
    main()
