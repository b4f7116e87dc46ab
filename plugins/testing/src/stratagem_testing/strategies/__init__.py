"""What every strategy is to do. The order is that of a report: what others build on comes first."""

from __future__ import annotations

from stratagem_testing.checks import checks_in
from stratagem_testing.strategies import (
    accumulation,
    changes,
    clipping,
    collectives,
    configuration,
    consistency,
    data,
    declaration,
    evaluation,
    fidelity,
    launching,
    missing_losses,
    modules,
    optimizer_hooks,
    optimizers,
    parity,
    penalties,
    preemption,
    randomness,
    replicas,
    resumption,
    stages,
)

STRATEGY_CHECKS = checks_in(
    declaration,
    collectives,
    configuration,
    parity,
    accumulation,
    missing_losses,
    optimizers,
    clipping,
    optimizer_hooks,
    changes,
    modules,
    replicas,
    fidelity,
    penalties,
    data,
    randomness,
    evaluation,
    consistency,
    resumption,
    preemption,
    stages,
    launching,
)
