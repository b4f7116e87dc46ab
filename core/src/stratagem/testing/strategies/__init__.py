"""What every strategy is to do. The order is that of a report: what others build on comes first."""

from __future__ import annotations

from stratagem.testing.checks import checks_in
from stratagem.testing.strategies import (
    accumulation,
    clipping,
    collectives,
    data,
    declaration,
    evaluation,
    launching,
    modules,
    optimizers,
    parity,
    randomness,
    resumption,
)

STRATEGY_CHECKS = checks_in(
    declaration,
    collectives,
    parity,
    accumulation,
    optimizers,
    clipping,
    modules,
    data,
    randomness,
    evaluation,
    resumption,
    launching,
)
