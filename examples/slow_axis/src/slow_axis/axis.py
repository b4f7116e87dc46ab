"""The axis `slow`: copies that step independently, and average their parameters every few steps."""

import torch
import torch.distributed as dist

from stratagem.sdk.axes import Axis, AxisSteps


class SlowAxis(Axis):
    """Copies on a slow network, each of which may be split or sharded along other axes.

    Args:
        size: number of copies.
        every: optimizer steps between two averages.
    """

    name = "slow"
    mesh_order = 0  # outermost: its ranks are far apart
    setup_order = 900  # after all that changes parameters
    reads_same_batches = False
    averages_gradients = False
    keeps_copies_equal = False
    lacks = frozenset({"norm_clipping", "closure"})  # a copy knows the norm of its own gradients alone
    sends = "their parameters every few steps (all-reduce)"

    def __init__(self, size="auto", *, every=10):
        super().__init__(size)
        self.every = every

    def apply(self, target):
        """Leave the module as it is; return what happens in each step."""
        return SlowSteps(target.mesh.get_group(self.name), self.every)


class SlowSteps(AxisSteps):
    """Averages when it is due, and whenever someone is going to look at the model."""

    def __init__(self, group, every):
        self.group, self.every, self.steps = group, every, 0

    def after_step(self, prepared, index):
        """Count steps, and average after the last optimizer's where it is due."""
        self.steps += index == len(prepared.optimizers) - 1
        if self.steps == self.every:
            self.average(prepared.original_module.parameters())
            self.steps = 0

    def make_equal(self, prepared):
        """Average parameters and optimizer states, so that a checkpoint has one of each."""
        self.average(prepared.original_module.parameters())
        for optimizer in prepared.optimizers:
            for state in optimizer.state.values():
                self.average(state.values())
        self.steps = 0

    @torch.no_grad()
    def average(self, tensors):
        """Average what this rank has of each tensor: along this axis, all ranks have the same part."""
        for tensor in tensors:
            if torch.is_tensor(tensor) and tensor.is_floating_point():
                part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                dist.all_reduce(part, group=self.group)
                part /= dist.get_world_size(self.group)
