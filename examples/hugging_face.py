"""A model of Hugging Face's transformers under FSDP: Llama, made from a configuration, so nothing is downloaded.

stratagem fit examples/hugging_face.py:Llama --max-steps 100 --strategy fsdp --accelerator cpu --devices 2
stratagem fit examples/hugging_face.py:Llama --max-steps 100 --strategy fsdp --devices 8 --precision bf16-mixed \
  --set model.hidden_size=2048 --set model.num_hidden_layers=16 --set model.num_attention_heads=32
"""

from __future__ import annotations

import torch
from language_model import StandardLibrary
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import stratagem


class Llama(stratagem.Module):
    """A language model of bytes.

    Args:
        hidden_size, num_hidden_layers, num_attention_heads: as in `LlamaConfig`.
        context: bytes that are read at once.
        batch_size: texts per step and process.
        lr: learning rate.
    """

    def __init__(
        self,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        context: int = 64,
        batch_size: int = 8,
        lr: float = 3e-3,
    ) -> None:
        super().__init__()
        self.context, self.batch_size, self.lr = context, batch_size, lr
        self.config = LlamaConfig(
            vocab_size=256,
            hidden_size=hidden_size,
            intermediate_size=4 * hidden_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads,
            max_position_embeddings=context,
            use_cache=False,
        )

    def configure_model(self) -> None:
        # Layers that are made here take no memory before each rank has its shards. To fine-tune, load the weights
        # of `LlamaForCausalLM.from_pretrained` in `__init__` instead.
        self.model = LlamaForCausalLM(self.config)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.model(input_ids=batch, labels=batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(StandardLibrary(self.context), self.batch_size, shuffle=True)
