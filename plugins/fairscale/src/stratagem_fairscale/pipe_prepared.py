"""What the loop calls per step under fairscale_pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairscale.nn.pipe.balance.blockpartition import solve
from torch import nn

from stratagem import ConfigError, Prepared, SetupRequest
from stratagem_fairscale.pipe_forward import PipeForward

if TYPE_CHECKING:
    from stratagem_fairscale.pipe import FairScalePipeStrategy


class PipePrepared(Prepared):
    """A module whose Sequential has layers on several devices of this process.

    Args:
        request: as the `setup` hook received it.
        strategy: has the settings.
    """

    def __init__(self, request: SetupRequest, strategy: FairScalePipeStrategy) -> None:
        module = request.precision.convert_module(request.module)
        sequential = sequential_in(request.original_module, strategy.sequential_module)
        balance = _balance(sequential, len(request.devices), strategy.balance)
        self._devices = request.devices[: len(balance)]
        layers = {id(tensor) for tensor in (*sequential.parameters(), *sequential.buffers())}
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in layers:  # not the layers: a large model may not fit on one device
                tensor.data = tensor.data.to(request.device)
        chunks = len(balance) if strategy.chunks is None else strategy.chunks
        self._pipe = PipeForward(sequential, balance, self._devices, chunks, strategy.checkpoint)
        try:
            super().__init__(request, module)
        except BaseException:
            self._pipe.release()
            raise

    def release(self) -> None:
        super().release()
        self._pipe.release()
        if len(set(self._devices)) > 1:  # back onto one device, which has room for it
            self.original_module.to("cpu")


def sequential_in(module: nn.Module, name: str | None) -> nn.Sequential:
    """Return the Sequential whose layers are distributed.

    Args:
        module: the user's module.
        name: as the user gave it; None for the one outermost `nn.Sequential` of at least two layers.

    Raises:
        ConfigError: there is none, there are several, or the named module isn't an ordinary Sequential.
    """
    kind = type(module).__name__
    if name is not None:
        try:
            found = module.get_submodule(name)
        except AttributeError:
            names = ", ".join(child for child, _ in module.named_children()) or "none"
            raise ConfigError(
                f"sequential_module={name!r} names no submodule of {kind}; it has {names}"
            ) from None
    else:
        stacks = {n: m for n, m in module.named_modules() if isinstance(m, nn.Sequential) and len(m) > 1}
        outermost = {n: m for n, m in stacks.items() if not any(_contains(other, n) for other in stacks)}
        if len(outermost) != 1:
            several = (
                f"{len(outermost)} nn.Sequentials, {', '.join(outermost)}: name one by sequential_module"
            )
            none = "no nn.Sequential of at least two layers: write its layers as one, or choose strategy 'pipeline'"
            raise ConfigError(
                f"fairscale_pipe distributes the layers of one, and {kind} has {several if outermost else none}"
            )
        ((name, found),) = outermost.items()
    if not isinstance(found, nn.Sequential):
        raise ConfigError(
            f"sequential_module={name!r} is a {type(found).__name__}, not an nn.Sequential: write it as one, or "
            "choose strategy 'pipeline' with split_points"
        )
    if type(found).forward is not nn.Sequential.forward or "forward" in vars(found):
        raise ConfigError(
            f"{name or kind!r} has its own forward, and FairScale runs the layers of an nn.Sequential one after "
            "the other: put the layers into a plain nn.Sequential"
        )
    if len(list(found.named_children())) != len(found):
        raise ConfigError(
            f"{name or kind!r} has a layer twice, which FairScale doesn't distribute: write it as one layer that is "
            "called twice in its forward"
        )
    return found


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))


def _balance(sequential: nn.Sequential, devices: int, given: list[int] | None) -> list[int]:
    """Return the number of layers on each device. With fewer layers than devices, some devices are unused.

    Raises:
        ConfigError: `given` has more entries than there are devices, or doesn't add up to the number of layers.
    """
    if given is None:
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in sequential]
        return [len(part) for part in solve(sizes, min(devices, len(sizes)))]
    if sum(given) != len(sequential) or len(given) > devices:
        raise ConfigError(
            f"balance={given} is for {sum(given)} layers on {len(given)} devices, and there are {len(sequential)} "
            f"layers and {devices} devices"
        )
    return given
