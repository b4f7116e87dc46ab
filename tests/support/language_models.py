"""GPT-2 and Llama of Hugging Face's transformers, with random weights, as recipes to train."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Before transformers is imported: nothing here is to be fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.trained import RecipeModule, train
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

import stratagem

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 101, 12, 32, 2, 4


def gpt2() -> nn.Module:
    """Its embedding and its head share their weight; its linear layers are transposed Conv1D."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            # Processes draw different numbers: no dropout, no difference.
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def llama() -> nn.Module:
    """Weights shared as in gpt2, grouped heads, and a rotary embedding in buffers that aren't saved."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


MODELS = {"gpt2": gpt2, "llama": llama}


class Sentences(Dataset[Any]):
    """Random tokens, in dicts as transformers takes them."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


@dataclass(frozen=True)
class LanguageModel(Recipe):
    """A causal language model by name."""

    model: str = "gpt2"
    steps: int | None = 10
    samples: int = 80
    global_batch: int = 8
    adaptive: bool = False
    """Step by AdamW. SGD's steps grow with the gradients, so that a wrong scale shows."""

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return MODELS[self.model]()

    def dataset(self) -> Dataset[Any]:
        return Sentences(self.samples)

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = net(**batch).loss
        return loss

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        logits: Tensor = net(input_ids=batch["input_ids"]).logits
        return logits

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        if self.adaptive:
            return [torch.optim.AdamW(net.parameters(), lr=1e-3)]
        return [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)]


class LateModule(RecipeModule):
    """Constructs its net where a strategy may want it without memory."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        del self.net

    def configure_model(self) -> None:
        self.net = self.recipe.net()


class StaysTied(stratagem.Callback):
    """Embedding and head are one parameter from the first step to the end."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.check(module)

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.check(module)

    def check(self, module: Any) -> None:
        assert module.net.get_output_embeddings().weight is module.net.get_input_embeddings().weight


class SaveAt(stratagem.Callback):
    """Saves a checkpoint after a step."""

    def __init__(self, step: int, path: str) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def train_models(
    subject: StrategySubject, recipes: Sequence[Recipe], module_class: type[RecipeModule] = RecipeModule
) -> list[Trained]:
    """Train one model after the other. Run by every rank."""
    return [train(subject, recipe, [StaysTied()], module_class=module_class) for recipe in recipes]


def save_on_the_way(subject: StrategySubject, recipe: Recipe, step: int, path: str) -> None:
    """Save after `step`, and go on to the end. Run by every rank."""
    train(subject, recipe, [SaveAt(step, path)])


def one_copy(world_size: int) -> int:
    """All ranks share one copy of the model, and read the same data."""
    return 1


def go_on(subject: StrategySubject, recipe: Recipe, path: str) -> Trained:
    """Load, and train to the end. Run by every rank."""
    return train(subject, recipe, [StaysTied()], ckpt_path=path)
