"""Print docs/guides/out-of-memory.md's table: what parameters, gradients and Adam's states take on a device.

python docs/gen/memory.py

Models are built on the meta device, so that they take no memory, and their parameters are counted. The rows are
those of docs/strategies/index.md, in 32 bits.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True},
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
           "vocab_size": 32000},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8, "vocab_size": 32000},
}  # fmt: skip
"""The layers of Llama 3.2 1B, Llama 2 7B and Llama 2 70B."""
DEVICES = (8, 64)
BYTES = 4
"""Of a parameter, a gradient, and each of Adam's two states."""


def main() -> None:
    print("| model | parameters | devices | `ddp` | `ddp_sharded` | `ddp_fully_sharded` | `fsdp` |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in SHAPES:
        total, layer = parameters(name)
        for devices in DEVICES:
            sizes = " | ".join(f"{size / 2**30:,.1f} GiB" for size in on_a_device(total, layer, devices))
            print(f"| {name} | {total:,} | {devices} | {sizes} |")


def parameters(name: str) -> tuple[int, int]:
    """Return how many parameters a model has, and one of its layers."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[name]))
    return sum(each.numel() for each in model.parameters()), sum(
        each.numel() for each in model.model.layers[0].parameters()
    )


def on_a_device(total: int, layer: int, devices: int) -> tuple[float, float, float, float]:
    """Return bytes on each device: under ddp, ddp_sharded, ddp_fully_sharded (in a step), and fsdp.

    Under fsdp, one layer at a time is whole: its parameters, and in backward its gradients.
    """
    psi = total * BYTES
    return (
        4 * psi,
        2 * psi + 2 * psi / devices,
        psi + 4 * psi / devices,
        4 * psi / devices + 2 * layer * BYTES,
    )


if __name__ == "__main__":
    main()
