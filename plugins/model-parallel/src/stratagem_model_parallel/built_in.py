"""Plans for the blocks that most transformers are made of. One record per kind of block."""

from __future__ import annotations

from typing import Any

from torch import nn

from stratagem_model_parallel.blocks import BlockPlan
from stratagem_model_parallel.styles import Style


def has_parts(module: nn.Module, *names: str) -> bool:
    """Whether the modules with parameters right below `module` are exactly those named."""
    return {name for name, child in module.named_children() if any(True for _ in child.parameters())} == set(
        names
    )


def _is_llama_block(module: nn.Module) -> bool:
    return (
        has_parts(module, "self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
        and has_parts(module.get_submodule("self_attn"), "q_proj", "k_proj", "v_proj", "o_proj")
        and has_parts(module.get_submodule("mlp"), "gate_proj", "up_proj", "down_proj")
        and hasattr(module.get_submodule("self_attn"), "head_dim")
    )


def _is_gpt2_block(module: nn.Module) -> bool:
    return type(module).__name__ == "GPT2Block" and not hasattr(module, "crossattention")


def _is_encoder_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.TransformerEncoderLayer)


ELEMENTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.Mish, nn.Softplus,
    nn.Hardswish, nn.Identity, nn.Dropout,
)  # fmt: skip
"""Elementwise modules, which may stand between two split linear layers."""


def _pairs(block: nn.Module) -> list[tuple[int, int]]:
    """Return positions of pairs of linear layers in a Sequential with only elementwise modules between them."""
    if type(block) is not nn.Sequential:
        return []
    pairs: list[tuple[int, int]] = []
    first: int | None = None
    for position, module in enumerate(block):
        if type(module) is nn.Linear:
            if first is None:
                first = position
            else:
                pairs.append((first, position))
                first = None
        elif not isinstance(module, ELEMENTWISE):
            first = None
    return pairs


def _styles_of_pairs(block: Any) -> dict[str, Style]:
    styles: dict[str, Style] = {}
    for first, second in _pairs(block):
        styles[str(first)] = "colwise"
        between = range(first + 1, second)
        styles.update({str(at): "local_dropout" for at in between if isinstance(block[at], nn.Dropout)})
        styles[str(second)] = "rowwise"
    return styles


LLAMA = BlockPlan(
    _is_llama_block,
    {
        "self_attn": "whole_input",
        "self_attn.q_proj": "colwise",
        "self_attn.k_proj": "colwise",
        "self_attn.v_proj": "colwise",
        "self_attn.o_proj": "rowwise",
        "mlp": "whole_input",
        "mlp.gate_proj": "colwise",
        "mlp.up_proj": "colwise",
        "mlp.down_proj": "rowwise",
    },
    sequence_styles={
        "input_layernorm": "sequence",
        "self_attn": "whole_input_sequence",
        "self_attn.o_proj": "rowwise_sequence",
        "post_attention_layernorm": "sequence",
        "mlp": "whole_input_sequence",
        "mlp.down_proj": "rowwise_sequence",
    },
    divisible=("self_attn.config.num_attention_heads", "self_attn.config.num_key_value_heads"),
)
"""Llama, Mistral, Qwen2 and other models of transformers with the same submodules."""

GPT2 = BlockPlan(
    _is_gpt2_block,
    {
        "attn.c_attn": "packed",
        "attn.c_proj": "rowwise",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
    },
    sequence_styles={
        "ln_1": "sequence",
        "attn": "whole_input_sequence",
        "attn.c_proj": "rowwise_sequence",
        "attn.resid_dropout": "local_dropout",
        "ln_2": "sequence",
        "mlp": "whole_input_sequence",
        "mlp.c_proj": "rowwise_sequence",
        "mlp.dropout": "local_dropout",
    },
    divided=("attn.num_heads", "attn.split_size"),
)
"""GPT-2 of transformers: weights are (in, out), and one layer computes queries, keys and values."""

ENCODER_LAYER = BlockPlan(
    _is_encoder_layer,
    {
        "self_attn": "attention",
        "linear1": "colwise",
        "dropout": "local_dropout",
        "linear2": "rowwise",
    },
    sequence_styles={
        "self_attn": "attention_sequence",
        "norm1": "sequence",
        "norm2": "sequence",
        "dropout1": "local_dropout",
        "dropout2": "local_dropout",
        "linear1": "colwise_sequence",
        "linear2": "rowwise_sequence",
    },
    divisible=("self_attn.num_heads",),
    sequence_dim=lambda block: 1 if block.self_attn.batch_first else 0,
)
"""torch.nn.TransformerEncoderLayer."""

FEED_FORWARD = BlockPlan(lambda module: bool(_pairs(module)), _styles_of_pairs)
"""A Sequential with a linear layer, activations and a linear layer in a row."""

BUILT_IN = (LLAMA, GPT2, ENCODER_LAYER, FEED_FORWARD)
"""Built-in plans, in the order in which they are tried."""
