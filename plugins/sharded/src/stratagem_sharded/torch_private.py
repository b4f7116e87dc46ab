"""What this plugin uses of torch that torch keeps private: all of it, each with the reason.

plugins/sharded/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.optim import Optimizer


def partition_again(zero: ZeroRedundancyOptimizer) -> list[dict[str, Any]]:
    """Partition `zero.param_groups` over the ranks as they are now; call `finish_partition` when local groups are.

    `add_param_group` does it for one group that it adds itself, and a group that the user added to the optimizer
    that this one stands for is in `param_groups` already.

    Returns:
        This rank's part of each group.
    """
    own: Any = zero  # torch's stubs lack most of it
    own._all_params = [parameter for group in zero.param_groups for parameter in group["params"]]
    own._clear_cache()
    groups: list[dict[str, Any]] = own._partition_parameters()[own.rank]
    return groups


def move_step_hooks(whole: Optimizer, part: Optimizer, stepped: Optimizer) -> None:
    """Have the step hooks of `whole` called around the step of `stepped`, and not around that of `part`.

    Those that are registered later, too: both have one dict of hooks, from which handles remove them. No public name
    of torch gives the hooks of an optimizer.
    """
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(part, name, OrderedDict())
        setattr(stepped, name, getattr(whole, name))


def finish_partition(zero: ZeroRedundancyOptimizer) -> None:
    """Note which parameters are trained, and make what they are broadcast in."""
    own: Any = zero
    own._is_trainable_mask = own._get_is_trainable_mask()
    own._build_param_buckets()


def broadcast_parameters(zero: ZeroRedundancyOptimizer) -> None:
    """Give all ranks what each has made of the parameters that it steps. Collective."""
    own: Any = zero
    own._sync_params()
