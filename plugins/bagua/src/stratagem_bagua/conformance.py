"""What `stratagem conformance bagua`, its presets and the tests try."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stratagem_testing import COMPARED_WITH_ITSELF, DRIFTING_REPLICAS, StrategySubject
from stratagem_testing.subject import TOLERANCES

if TYPE_CHECKING:
    from torch.optim import Optimizer

SUBJECT = StrategySubject("bagua", options={"timeout_s": 60})

_DRIFT = dict.fromkeys(
    ("replicas_are_compared-2", "replicas_are_compared-4"),
    "replicas differ at all times by design, and nothing compares them",
)
_OWN_GRADIENTS = {
    "own_gradients-2": "gradients are each replica's own at all times: by design",
    "returned_norm-2": DRIFTING_REPLICAS["returned_norm-2"],
}

_APART = ("accumulation-4", "some_ranks_without_loss-4", "tied_weights-4")
"""Where single losses of a large step are furthest from those of one process."""


def _within(name: str, tolerance: float, **waivers: str) -> StrategySubject:
    """A preset whose numbers are those of one process, less exactly."""
    tolerances = {precision: max(usual, tolerance) for precision, usual in TOLERANCES.items()}
    further = {check: {"32-true": 0.4} for check in _APART} if waivers else {}
    return replace(SUBJECT, strategy=name, tolerances=tolerances, tolerances_for=further, waivers=waivers)


def qadam_of(optimizer: Optimizer) -> Optimizer:
    """Return qadam's own optimizer with the groups of another one, and smaller learning rates if it isn't Adam.

    One that wants a closure stays as it is, and is refused.
    """
    from stratagem_bagua.qadam_optimizer import QAdamOptimizer

    if "line_search_fn" in optimizer.defaults:
        return optimizer
    factor = 1.0 if "betas" in optimizer.defaults else 0.1
    groups = [
        {"params": group["params"], "lr": factor * group["lr"], "weight_decay": group.get("weight_decay", 0)}
        for group in optimizer.param_groups
    ]
    return QAdamOptimizer(groups, warmup_steps=5)


_NEVER = {"warmup_steps": 3, "sync_interval_ms": 10**9}
"""Replicas train independently. They are averaged only where other code reads the model."""

SUBJECTS = {
    "bagua": SUBJECT,
    "bagua_bytegrad": _within("bagua_bytegrad", 2e-2),
    # Gradients are of each replica's own parameters, a step away from the others'; tests/test_algorithms.py holds
    # both against the algorithms by hand.
    "bagua_decentralized": _within("bagua_decentralized", 0.15, **_DRIFT, **_OWN_GRADIENTS),
    "bagua_low_precision_decentralized": _within(
        "bagua_low_precision_decentralized", 0.15, **_DRIFT, **_OWN_GRADIENTS
    ),
    # In 8 bits from the sixth step on. It feeds back what is rounded off momenta, not gradients, so that
    # `feeds_errors_back` isn't true of it: tests/test_qadam.py compares it with the algorithm by hand.
    "bagua_qadam": replace(
        _within("bagua_qadam", 2e-2),
        optimizer=qadam_of,
        # A learning rate of 0.2, which is much to Adam; and norms of each rank's own gradients after the warm-up.
        tolerances_for={check: {"32-true": 6e-2} for check in ("schedulers", "norm_clipping")},
    ),
    # One process's numbers in the warm-up alone: averages arrive when they do, and tests/test_async.py tries these.
    "bagua_async": replace(
        SUBJECT,
        strategy="bagua_async",
        options={**SUBJECT.options, "warmup_steps": 10**6},
        options_for=dict.fromkeys(COMPARED_WITH_ITSELF, _NEVER),
        waivers=_DRIFT,
    ),
}
