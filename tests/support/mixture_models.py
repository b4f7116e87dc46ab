"""Models with mixtures of experts, as recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from stratagem_expert.conformance import SmallMixture
from tensor_models import LENGTH, VOCABULARY, WIDTH, Sentences
from torch import Tensor, nn
from torch.nn import functional as F


class OnlyFirst(nn.Module):
    """A router that prefers the first expert by far, so that some experts get nothing."""

    def __init__(self, router: nn.Linear) -> None:
        super().__init__()
        self.router = router

    def forward(self, tokens: Tensor) -> Tensor:
        return self.router(tokens) + torch.tensor([20.0, 15.0, 0.0, 0.0])


class Mixed(nn.Module):
    """Embeddings, a mixture, attention-free."""

    def __init__(self, is_lopsided: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.mixture = SmallMixture(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if is_lopsided:
            self.mixture.router = OnlyFirst(self.mixture.router)  # type: ignore[assignment]  # called the same way

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        return self.head(x + self.mixture(x))


def transformers_model(kind: str) -> nn.Module:
    """A small language model of transformers with four experts in each of two layers."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 24,
        "max_position_embeddings": LENGTH,
        "num_experts_per_tok": 2,
        "attention_dropout": 0.0,
        "initializer_range": 0.2,
        "use_cache": False,
    }
    kinds: dict[str, Any] = {
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**common, num_local_experts=4, router_aux_loss_coef=0.1)
        ),
        "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(
                **common, num_experts=4, moe_intermediate_size=12, norm_topk_prob=True
            )
        ),
        "gpt_oss": lambda: transformers.GptOssForCausalLM(
            transformers.GptOssConfig(**common, num_local_experts=4, attn_implementation="eager")
        ),
    }
    return kinds[kind]()


NETS: dict[str, Any] = {"mixed": Mixed, "lopsided": lambda: Mixed(is_lopsided=True)}


@dataclass(frozen=True)
class Mixtures(Sentences):
    """Predict the next token by a model with experts."""

    model: str = "mixed"
    experts_implementation: str = "eager"

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            if self.model in NETS:
                return NETS[self.model]()
            net = transformers_model(self.model)
            net.set_experts_implementation(self.experts_implementation)
            return net

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        logits = self.predict(net, batch)
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        output = net(batch[0])
        return output if isinstance(output, Tensor) else output.logits
