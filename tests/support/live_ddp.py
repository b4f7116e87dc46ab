"""Own loops under ddp in two processes, without comparing them: what tests of its own backwards start with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stratagem import Runtime


def runtime(**options: Any) -> Runtime:
    return Runtime(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        check_replicas_every=0,
        strategy_options={"start_method": "fork", "timeout_s": 60, **options},
    )


def ready(live: Runtime, net: nn.Module) -> tuple[Any, Any]:
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return module, optimizer
