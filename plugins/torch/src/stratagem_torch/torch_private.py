"""What this plugin uses of torch that torch keeps private, with the reason.

plugins/torch/tests/test_torch_private.py fails when torch changes it.
"""

from __future__ import annotations

import torch


def backend_out_of_tree() -> str:
    """Return the name of the device type that a vendor registered, "privateuseone" where none did.

    `torch.utils.rename_privateuse1_backend` sets it, and nothing public returns it.
    """
    return torch._C._get_privateuse1_backend_name()
