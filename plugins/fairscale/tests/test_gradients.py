"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_sharding.held_gradient import HeldGradient
from torch import nn

from stratagem import Runtime
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
    "schedule_and_hooks": "has step hooks",
    **dict.fromkeys(
        (
            *("averages_of_changed", "clip_of_torch", "gradients_averaged", "gradients_replaced_and_dropped"),
            *("norm_idiom", "norm_of_two_backwards"),
        ),
        "p.grad of any other has no values .* clip by runtime.clip",
    ),
}
OWN = (
    "clip_of_torch",
    "averages_of_changed",
    "averages_clipped",
    "norm_idiom",
    "dropped_between_forward_and_backward",
    "windows_of_two_optimizers",
)


@pytest.mark.parametrize("reduce_buffer_size", [2**23, 0], ids=["buckets", "one_by_one"])
def test_a_loop_equals_one_process_or_is_refused(reduce_buffer_size: int) -> None:
    rows = [*OF_GRADIENTS, *OWN]
    check_rows("fairscale_sharded", rows, REFUSED, reduce_buffer_size=reduce_buffer_size)


def seen_per_rank(live: Runtime, resets: str) -> Any:
    """Return which gradients a rank lacks after a backward, and the parameters after two steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(2):
        live.backward(module(torch.ones(2, 3) + live.rank).square().mean())
        lacking = [name for name, p in net.named_parameters() if isinstance(p.grad, HeldGradient)]
        assert [p.grad.shape for p in net.parameters()] == [p.shape for p in net.parameters()]
        optimizer.step()
        if resets == "by hand":
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
        elif resets == "module":
            net.zero_grad(set_to_none=False)
        else:
            optimizer.zero_grad(set_to_none=resets == "none")
    return live.collectives.gather_objects((lacking, {n: p.tolist() for n, p in net.named_parameters()}))


def test_gradients_of_other_ranks_are_reset_like_others() -> None:
    results = [
        Runtime(strategy="fairscale_sharded", accelerator="cpu", devices=2).launch(
            seen_per_rank, resets, quiet=True
        )
        for resets in ("none", "zeros", "by hand", "module")
    ]
    (first, trained), (second, _) = results[0]
    assert sorted(first + second) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert [same for result in results for _, same in result] == [trained] * 8
