"""A small GPT-2, sentences of unequal lengths, and what is trained with them; workers import it, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Before transformers is imported: nothing here is to be fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch.utils.data import DataLoader, Dataset

import stratagem

VOCABULARY, LENGTH, PADDING = 53, 10, 52
LORA = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "target_modules": ["c_attn"],
    "fan_in_fan_out": True,
}


def config() -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=2 * LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        # Processes draw different numbers: no dropout, no difference.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=PADDING,
        use_cache=False,
        architectures=["GPT2LMHeadModel"],
    )


def gpt2() -> Any:
    from transformers import GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return GPT2LMHeadModel(config())


def sentences(count: int, unequal: bool = False) -> list[dict[str, list[int]]]:
    """Tokens of one length. The first is no label, as no model predicts it; with `unequal`, further ones aren't."""
    drawn = torch.randint(PADDING, (count, LENGTH), generator=torch.Generator().manual_seed(5)).tolist()
    without = [1 + (3 * idx % (LENGTH - 1) if unequal else 0) for idx in range(count)]
    return [
        {"input_ids": each, "attention_mask": [1] * LENGTH, "labels": [-100] * first + each[first:]}
        for each, first in zip(drawn, without, strict=True)
    ]


class Sentences(Dataset[Any]):
    def __init__(self, count: int, unequal: bool = False) -> None:
        self.samples = sentences(count, unequal)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.samples[index]


class SentenceData(stratagem.DataModule):
    """In their order, so that they can be compared."""

    def __init__(self, count: int = 38, batch_size: int = 4, unequal: bool = False) -> None:
        self.count, self.batch_size, self.unequal = count, batch_size, unequal

    def _loader(self, count: int) -> Any:
        from transformers import default_data_collator

        return DataLoader(Sentences(count, self.unequal), self.batch_size, collate_fn=default_data_collator)

    def train_dataloader(self) -> Any:
        return self._loader(self.count)

    def val_dataloader(self) -> Any:
        return self._loader(7)

    test_dataloader = predict_dataloader = val_dataloader


class StepLosses(stratagem.Callback):
    """The loss of each step over all ranks: of sums by their weights, else of means by samples."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if module.weighs_losses:
            total, count = loss.detach(), outputs["weight"].float()
        else:
            count = torch.tensor(float(len(batch["input_ids"])))
            total = loss.detach() * count
        sums = trainer.runtime.all_reduce(torch.stack([total, count]), "sum")
        self.losses.append(float(sums[0] / sums[1]))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def fitted(
    folder: Path,
    strategy: str,
    devices: int,
    batch_size: int = 4,
    peft: Any = None,
    callbacks: Any = (),
    unequal: bool = False,
    **settings: Any,
) -> tuple[list[float], Any, stratagem.Trainer]:
    """Train the small GPT-2 for two epochs, `unequal` numbers of labels weighed; losses, module and trainer."""
    from stratagem_huggingface import HFModule

    losses = StepLosses()
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        callbacks=[losses, *callbacks],
        run_dir=str(folder),
        **{
            "max_epochs": 2,
            "gradient_clip_val": 1.0,
            "enable_progress_bar": False,
            "logger": False,
            **settings,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)  # for adapters, which are drawn
        module = HFModule(gpt2(), lr=1e-3, weight_decay=0.1, warmup_steps=3, peft=peft, weigh_losses=unequal)
    trainer.fit(module, datamodule=SentenceData(batch_size=batch_size // devices, unequal=unequal))
    return losses.losses, module, trainer
