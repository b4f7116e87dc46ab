"""What this plugin uses of torchao that torchao keeps private. All of it, each with the reason.

plugins/float8/tests/test_torchao_private.py fails when torchao changes one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what importing torchao logs: kernels that it has for other machines, and its own deprecated calls."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


with _quiet():
    from torchao.float8.float8_linear import Float8Linear


class Float8Layer(Float8Linear):  # type: ignore[misc]  # its types are left out
    """A linear layer that torchao computes, on inputs in the dtype of autocast.

    torchao casts inputs under autocast of "cuda" alone. Its own class is the base, which it calls private: its public
    `convert_to_float8_training` makes other modules of that class, and the user's have to stay the same objects.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply rows by the weight, in float8, and add the bias.

        Args:
            input: of shape (..., in_features).
        """
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            input = input.to(torch.get_autocast_dtype(device_type))
        output: torch.Tensor = super().forward(input)
        return output
