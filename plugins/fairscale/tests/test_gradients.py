"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

import pytest

from tests.parity.hands_on_rows import OF_GRADIENTS
from tests.support.hands_on import check_rows

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

LATE = "setup\\(\\) didn't get it"
REFUSED = {
    "pcgrad": "'0.weight' was assigned by your code.* call runtime.average_gradients",
    "clip_within_no_sync": "^the gradient of '[0-9a-z.]+' was changed before it was averaged over the ranks",
    "head_replaced_in_group": "was added after setup",
    "shared_trunk": "of Sequential is a parameter of Sequential too",
    "retained_graph": "was computed again before its first value was averaged",
    "optimizer_afterwards": LATE,
    "optimizer_in_backward": LATE,
    "given_optimizer_stepped": "step the optimizer that setup",
    "gradients_averaged": "were changed by your code after they had been averaged",
    "clip_of_torch": "were changed by your code after .* clip by runtime.clip",
    "averages_of_changed": "were changed by your code after",
}
# They read all parameters' gradients, of which a rank has those that it steps.
READ_ALL = {"gradients_replaced_and_dropped", "schedule_and_hooks", "norm_of_two_backwards"}
OWN = (
    "clip_of_torch",
    "averages_of_changed",
    "averages_clipped",
    "dropped_between_forward_and_backward",
    "windows_of_two_optimizers",
)


@pytest.mark.parametrize("reduce_buffer_size", [2**23, 0], ids=["buckets", "one_by_one"])
def test_a_loop_equals_one_process_or_is_refused(reduce_buffer_size: int) -> None:
    rows = [*(name for name in OF_GRADIENTS if name not in READ_ALL), *OWN]
    check_rows("fairscale_sharded", rows, REFUSED, reduce_buffer_size=reduce_buffer_size)
