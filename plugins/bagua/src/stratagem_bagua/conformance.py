"""What `stratagem conformance bagua`, its presets and the tests try."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import StrategySubject
from stratagem_testing.subject import TOLERANCES

SUBJECT = StrategySubject("bagua", options={"timeout_s": 60})

_DRIFT = dict.fromkeys(
    ("replicas_are_compared-2", "replicas_are_compared-4"),
    "replicas differ at all times by design, and nothing compares them",
)

_APART = ("accumulation-4", "some_ranks_without_loss-4", "tied_weights-4")
"""Where single losses of a large step are furthest from those of one process."""


def _within(name: str, tolerance: float, **waivers: str) -> StrategySubject:
    """A preset whose numbers are those of one process, less exactly."""
    tolerances = {precision: max(usual, tolerance) for precision, usual in TOLERANCES.items()}
    further = {check: {"32-true": 0.4} for check in _APART} if waivers else {}
    return replace(SUBJECT, strategy=name, tolerances=tolerances, tolerances_for=further, waivers=waivers)


SUBJECTS = {
    "bagua": SUBJECT,
    "bagua_bytegrad": _within("bagua_bytegrad", 2e-2),
    # Gradients are of each replica's own parameters, a step away from the others'; tests/test_algorithms.py holds
    # both against the algorithms by hand.
    "bagua_decentralized": _within("bagua_decentralized", 0.15, **_DRIFT),
    "bagua_low_precision_decentralized": _within("bagua_low_precision_decentralized", 0.15, **_DRIFT),
}
