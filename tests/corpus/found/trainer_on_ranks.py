"""transformers' Trainer on two ranks, under DDP and FSDP2, against one process: `diff` finds no difference.

python -m tests.corpus.found.trainer_on_ranks
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SENTENCES, TOKENS, WORDS, BATCH, MICRO_BATCHES, STEPS = 24, 16, 64, 4, 2, 3
FSDP = {
    "fsdp": "full_shard",
    "fsdp_config": {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
}
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "rounding": {}, "DDP": {}, "FSDP2": FSDP}


def sentences() -> list[dict[str, Any]]:
    """Return sentences of which unequally many tokens have a label."""
    import torch

    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(SENTENCES):
        tokens = torch.randint(WORDS, (TOKENS,), generator=generator)
        labels = tokens.clone()
        labels[: int(torch.randint(12, (), generator=generator))] = -100
        found.append({"input_ids": tokens, "labels": labels})
    return found


def train(name: str, folder: str) -> None:
    """Train in this process, which is one of torchrun's or the only one, and record it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from stratagem_diff import record
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]  # it is given

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output,
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", "1")),
            gradient_accumulation_steps=MICRO_BATCHES,
            max_grad_norm=1.0,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            **OPTIONS[name],
        )
        trainer = InOrder(model, arguments, train_dataset=sentences())  # type: ignore[arg-type]  # a list has a length
        with record(model, None, f"{folder}/{name}", steps=STEPS, rounding=name == "rounding"):
            trainer.train()


def main() -> None:
    import transformers
    from stratagem_diff import compare, sentence

    print(f"transformers {transformers.__version__}, {STEPS} steps of {MICRO_BATCHES} micro-batches")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        for name in OPTIONS:
            command = [sys.executable, *(launch if name in ("DDP", "FSDP2") else []), __file__, name, folder]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name}\n{done.stderr[-4000:]}")
        for name in ("DDP", "FSDP2"):
            found = compare(f"{folder}/plain", f"{folder}/{name}", [f"{folder}/rounding"])
            print(f"{name} on 2 ranks against one process: {sentence(found)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], sys.argv[2])
    else:
        main()
