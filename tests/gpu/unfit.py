"""What says nothing of a device: rows that fail there in plain PyTorch, too, or are compared with other numbers.

They run, and their results are kept. A piece of work in which nothing else fails hasn't failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CPU_TENSORS = "creates tensors on the CPU, or wants them there, and fails in plain PyTorch, too"
RANDOM = "draws random numbers on the device, and is compared with the CPU's"
SPARSE = "sim has no sparse tensors"

DEVICES: Mapping[str, str] = {
    # Of parity.
    **dict.fromkeys(
        ("lstm_packed", "gru_packed", "variable_lengths", "contrastive", "hook_mask"), CPU_TENSORS
    ),
    "lazy_uninitialized": RANDOM,
    # Of own loops.
    **dict.fromkeys(("gradient_noise", "weights_reinitialized"), RANDOM),
    **dict.fromkeys(("functional_maml", "momentum_encoder", "head_replaced", "layer_added"), CPU_TENSORS),
    **dict.fromkeys(("head_replaced_in_group", "head_extended", "head_replaced_untrained"), CPU_TENSORS),
    **dict.fromkeys(("parameter_of_no_module", "parameter_averaged_by_hand"), CPU_TENSORS),
    **dict.fromkeys(("average_of_an_older_list", "weights_swapped_by_copies"), CPU_TENSORS),
    **dict.fromkeys(("gradients_in_one_buffer", "lookahead_of_matrices"), CPU_TENSORS),
}
"""Name of a row of own loops, of a kind of parity or of a check of the kit → why, on any device but the CPU."""
OF_ONE: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "muon": "orthogonalizes in bfloat16, which a GPU rounds differently",
        "conv_transposed": "is computed in TF32 by cuDNN",
    },
    "sim": {
        **dict.fromkeys(("embedding_sparse", "sparse_adam", "sparse_gradients"), SPARSE),
        "other_world_size": "asks for 4 devices, and sim has 2 unless STRATAGEM_SIM_DEVICES says more",
        "no_sync": "counts collectives by sequence numbers, which PyTorch has for its own process groups alone",
    },
}
"""The same for single devices."""


def unfit_on(accelerator: str) -> dict[str, str]:
    """Return what says nothing of a device, by name, and why."""
    return {} if accelerator == "cpu" else {**DEVICES, **OF_ONE.get(accelerator, {})}


def failures_of(result: Mapping[str, Any], accelerator: str) -> list[str]:
    """Return the names of what failed in a piece of work, without what is unfit.

    Args:
        result: `exit`, and what was `found`.
        accelerator: on which it ran.

    Returns:
        Names of rows, kinds and checks; "exit" where it ended otherwise than well, and names none.
    """
    found, names = result["found"], []
    if isinstance(found, list):
        names = [
            cell["kind"] if "kind" in cell else cell["row"]
            for cell in found
            if cell["verdict"] not in ("equal", "refused", "guarded")
        ]
    elif isinstance(found, dict):
        names = [each["check"] for each in found.get("failures", ())]
        names += [name for name, said in found.get("cells", {}).items() if said.startswith("failed")]
    if result["exit"] and not names:
        return ["exit"]
    unfit = unfit_on(accelerator)
    return [*(["time"] if result["exit"] is None else []), *(name for name in names if name not in unfit)]
