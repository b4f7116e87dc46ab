"""What this plugin uses of torch that torch keeps private. All of it, each with the reason.

plugins/activations/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

import torch

FUSED_ATTENTION = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""What `scaled_dot_product_attention` calls: a dispatch mode sees these and not the public function."""
