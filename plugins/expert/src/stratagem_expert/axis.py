"""The axis `expert`: the experts of each mixture split among the ranks along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratagem_fsdp import ShardAxis
from stratagem_sharding.torch_private import own_parameters
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from stratagem import ConfigError, Prepared
from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem_expert.dispatch import dispatch_tokens
from stratagem_expert.mixtures import Mixture, mixtures_of, refuse_compiled

if TYPE_CHECKING:
    from contextlib import ExitStack

    from stratagem_sharding.wrap_policy import Policy
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class ExpertAxis(Axis):
    """Experts split among the ranks along this axis, which read different batches. Tokens travel to their experts.

    No token is dropped. Everything but the experts is sharded along this axis, as along `shard`.

    Args:
        size: number of ranks among which each mixture's experts are split; "auto" is what the other axes leave.
        modules: which further modules hold experts: names of classes, or classes, as for fsdp's auto_wrap_policy.
            Those of a class whose name ends with "Experts" are recognised; docs/guides/experts.md says more.
    """

    name = "expert"
    mesh_order = 400
    # Before `context`, whose hooks are on blocks around the experts, and before `shard`, which shards shards.
    setup_order = 150
    reads_same_batches = False
    unsplit_parameters = "shards"
    takes_parts = True
    lacks = frozenset({"sparse_gradients", "whole_optimizer"})
    sends = (
        "tokens to the ranks of their experts and back, in forward and backward (all-to-all); all other "
        "parameters as along shard"
    )

    def __init__(self, size: AxisSize = "auto", *, modules: Policy = None) -> None:
        super().__init__(size)
        self.modules = modules

    def companions(self) -> Sequence[Axis]:
        """The axis `shard`, which shards the rest of the module."""
        return (ShardAxis(1),)

    def check_module(self, module: nn.Module, sizes: Mapping[str, int]) -> None:
        """Refuse a module without a mixture, or with experts that can't be split equally."""
        self._mixtures(module, sizes[self.name])

    def _mixtures(self, module: nn.Module, size: int) -> list[Mixture]:
        mixtures = mixtures_of(module, self.modules)
        for mixture in mixtures:
            if mixture.experts % size:
                raise ConfigError(
                    f"{mixture.name!r} has {mixture.experts} experts, which {size} ranks along axis {self.name!r} "
                    f"can't have equally many of: give it a size that divides {mixture.experts}"
                )
        return mixtures

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Split the experts of every mixture, and let tokens travel to them.

        Raises:
            ConfigError: the module has no mixture, or one whose experts can't be split equally.
        """
        size = target.sizes[self.name]
        mixtures = self._mixtures(target.request.original_module, size)
        if size > 1:
            refuse_compiled(target.request.original_module, mixtures)
        if size > 1:
            mesh = target.mesh[self.name]
            roots = target.roots or [target.request.original_module]
            here = {module for root in roots for module in root.modules()}
            own = [mixture for mixture in mixtures if mixture.module in here]
            for mixture in own:
                _split(mixture.module, mesh)
                target.split[mixture.module] = self.name
            return ExpertSteps(own, mesh.get_group(), target.closing)
        return AxisSteps()


class ExpertSteps(AxisSteps):
    """Lets tokens travel to their experts.

    Args:
        mixtures: whose experts are split.
        group: the ranks that have them.
        closing: undoes it.
    """

    def __init__(self, mixtures: Sequence[Mixture], group: ProcessGroup, closing: ExitStack) -> None:
        self._mixtures, self._group, self._closing = mixtures, group, closing

    def begin(self, prepared: Prepared) -> None:
        # Now, since all other hooks on these modules are to be called with the parameters that `setup` sharded.
        for mixture in self._mixtures:
            for handle in dispatch_tokens(mixture, self._group):
                self._closing.callback(handle.remove)


def _split(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let each rank have some of the experts: every parameter is a shard of its first dimension."""
    for name, whole in list(own_parameters(module).items()):
        if whole is not None:
            shard = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(shard, requires_grad=whole.requires_grad))
