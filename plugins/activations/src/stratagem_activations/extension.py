"""`Activations`: the extension `activations`, which wraps the hook `setup` of any run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Literal, get_args

from stratagem_sharding.own_forwards import OwnForwards, UndonePrepared, blocks_of
from stratagem_sharding.wrap_policy import Policy, recompute_activations

from stratagem import ConfigError, hookimpl
from stratagem_activations.offload import offload_activations
from stratagem_activations.selective import keep_matrix_products

if TYPE_CHECKING:
    from stratagem import Prepared, SetupRequest

Mode = Literal["none", "selective", "full", "offload"]
"""What becomes of a block's activations between forward and backward."""


class Activations:
    """Uses less memory for activations of blocks, with the same numbers, under any strategy.

    Args:
        mode: "full" keeps a block's inputs and recomputes the rest in backward; "selective" keeps results of matrix
            products, convolutions and attention too, and recomputes what is cheap; "offload" keeps activations in
            pinned host memory, and changes nothing on the CPU; "none" changes nothing.
        modules: the blocks: module classes, their names, or a policy of `torch.distributed.fsdp.wrap`. None takes the
            elements of each ModuleList, and the elements of each Sequential that are composed themselves.

    Raises:
        ConfigError: `mode` is not one of these. Later, in `setup`: the model has no such module.
    """

    def __init__(self, mode: Mode = "full", modules: Policy = None) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"mode={mode!r} must be one of {', '.join(get_args(Mode))}")
        self.mode, self.modules = mode, modules

    @hookimpl(wrapper=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        """Replace the forwards of the blocks before the strategy sees the module, and give them back at the end."""
        if self.mode == "none" or not request.loop.training:
            return (yield)
        advice = "name their classes by Activations(modules=[...])"
        blocks = blocks_of(request.original_module, self.modules, advice)
        own = OwnForwards(blocks)
        try:
            if self.mode == "full":
                recompute_activations(blocks)
            elif self.mode == "selective":
                recompute_activations(blocks, keep_matrix_products)
            else:
                offload_activations(blocks)
            return UndonePrepared((yield), own.restore)
        except BaseException:
            # The strategy refuses the module: another may set it up.
            own.restore()
            raise
