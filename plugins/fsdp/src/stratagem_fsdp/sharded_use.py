"""Explains torch's errors about parameters that are used outside of their block's forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stratagem_sharding.used_parameter import parameter_used_in
from torch import nn

from stratagem.errors import ShardedUseError

_SIGNS = ("DTensor", "sharding strategy", "setStorage")


@contextmanager
def explaining(
    original_module: nn.Module, units: Sequence[object], strategy: str, advice: str
) -> Iterator[None]:
    """Run a forward or backward; turn torch's errors about shards into an error that names the parameter.

    Args:
        original_module: the user's module, whose names the message uses.
        units: blocks whose parameters are shards outside of their own forward and backward.
        strategy: name of the strategy.
        advice: what to change.

    Raises:
        ShardedUseError: in place of torch's error; other errors are raised unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        raise _explained(error, original_module, units, strategy, advice) from error


def _explained(
    error: RuntimeError, original_module: nn.Module, units: Sequence[object], strategy: str, advice: str
) -> ShardedUseError:
    blocks = [name for name, module in original_module.named_modules() if module in units and name]
    used = parameter_used_in(
        error.__traceback__, {id(p): name for name, p in original_module.named_parameters()}
    )
    of = next((name for name in reversed(blocks) if used is not None and used.startswith(f"{name}.")), None)
    if used is not None:
        what = (
            f"{used!r}"
            + (f" of the block {of!r}" if of else "")
            + " was used where this process has its shard alone"
        )
    else:
        named = ", ".join(map(repr, blocks[:3])) + (" and others" if len(blocks) > 3 else "")
        what = "parameters of " + (f"the blocks {named}" if blocks else "split layers")
        what += " were used where this process has shards of them"
    return ShardedUseError(
        f"under {strategy}, {what}: outside of their module's own forward, or in a gradient of a gradient (torch: "
        f"{str(error).splitlines()[0][:120]}); {advice}"
    )
