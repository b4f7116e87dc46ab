"""Whole models, as small as they can be: of transformers by their configurations, and by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parity.kind import SAMPLES, Kind

VOCABULARY, LENGTH = 40, 8


class LanguageModel(Kind, abstract=True):
    theme = "models"
    tolerance = 1e-3
    tolerance_reason = "weights of norms hardly move: the rounding of sums counts more"
    lr = 0.1

    def sample(self, generator: torch.Generator) -> Any:
        return torch.randint(1, VOCABULARY, (SAMPLES, LENGTH), generator=generator)

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        return net(input_ids=batch, labels=batch).loss


class Gpt2(LanguageModel):
    """GPT-2 of transformers, with shared embeddings."""

    options = {"pipeline": {"split_points": ["transformer.h.1"]}}

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        return F.cross_entropy(net(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    def net(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=LENGTH,
                n_embd=16,
                n_layer=2,
                n_head=2,
                use_cache=False,
                **quiet,
            )
        )


class Bert(LanguageModel):
    """BERT of transformers, with a head for masked tokens."""

    def net(self) -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        return BertForMaskedLM(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=LENGTH,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )


class T5(LanguageModel):
    """T5 of transformers: encoder and decoder share an embedding."""

    lr = 0.02

    def net(self) -> nn.Module:
        from transformers import T5Config, T5ForConditionalGeneration

        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=2,
                num_heads=2,
                dropout_rate=0.0,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        )


class LlamaGqa(LanguageModel):
    """Llama of transformers, with grouped queries."""

    def net(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=LENGTH,
            )
        )


class Images(Kind, abstract=True):
    theme = "models"

    def sample(self, generator: torch.Generator) -> Any:
        images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
        return images, torch.randint(0, 5, (SAMPLES,), generator=generator)

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(net(images), labels)


class Vit(Images):
    """ViT of transformers."""

    def net(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        return ViTForImageClassification(
            ViTConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=8,
                patch_size=4,
                num_labels=5,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(net(images).logits, labels)


class UNet(nn.Module):
    """Two levels, with a skip between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.middle(self.down(first)))], 1))


class Unet(Images):
    """UNet that removes noise."""

    options = {"pipeline": {"pipeline_module": "net.first"}}

    def net(self) -> nn.Module:
        return UNet()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        images, _ = batch
        return F.mse_loss(net(images), images.flip(2))


class ConvNet(Images):
    """Convolutional classifier as an nn.Sequential."""

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
        )


class Sequences(Kind, abstract=True):
    theme = "models"

    def sample(self, generator: torch.Generator) -> Any:
        x = torch.randn(SAMPLES, LENGTH, 8, generator=generator)
        return x, torch.randn(SAMPLES, LENGTH, 8, generator=generator)


class TransformerEncoder(Sequences):
    """nn.TransformerEncoder."""

    options = {"pipeline": {"split_points": ["layers.1"]}}

    def net(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class MultiheadAttention(Sequences):
    """nn.MultiheadAttention."""

    def net(self) -> nn.Module:
        return Attend()


class ResidualMlp(Kind):
    """MLP as an nn.Sequential, SGD."""

    theme = "models"
