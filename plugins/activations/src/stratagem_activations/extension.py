"""`Activations`: the extension `activations`, which wraps the hook `setup` of any run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Literal, get_args

from stratagem_sharding.wrap_policy import Policy, modules_named, recompute_activations

from stratagem import ConfigError, PreparedWrapper, hookimpl
from stratagem_activations.offload import offload_activations
from stratagem_activations.selective import keep_matrix_products

if TYPE_CHECKING:
    from torch import nn

    from stratagem import Prepared, SetupRequest

    _Own = tuple[nn.Module, object]
    """A block, and the forward that it has as an attribute of its own; None where its class has it."""

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
        blocks = modules_named(request.original_module, self.modules, "modules")
        if not blocks:
            raise ConfigError(
                f"{type(request.original_module).__name__} has no ModuleList, and no Sequential of composed modules, "
                "whose elements could be the blocks: name their classes by Activations(modules=[...])"
            )
        own = [(block, vars(block).get("forward")) for block in blocks]
        try:
            if self.mode == "full":
                recompute_activations(blocks)
            elif self.mode == "selective":
                recompute_activations(blocks, keep_matrix_products)
            else:
                offload_activations(blocks)
            return _Restoring((yield), own)
        except BaseException:
            # The strategy refuses the module: another may set it up.
            _give_back(own)
            raise


class _Restoring(PreparedWrapper):
    """Gives blocks their own forwards back at the run's end."""

    def __init__(self, inner: Prepared, own: list[_Own]) -> None:
        super().__init__(inner)
        self._own = own

    def release(self) -> None:
        """Release `inner`, then give back the forwards."""
        self.inner.release()
        _give_back(self._own)


def _give_back(own: list[_Own]) -> None:
    for block, forward in own:
        # patch: replaced forwards
        if forward is None:
            vars(block).pop("forward", None)
        else:
            vars(block)["forward"] = forward
