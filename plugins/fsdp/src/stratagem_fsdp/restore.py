"""Making sharded modules plain again, where one process has all of every parameter."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


class Traces:
    """What `fully_shard` leaves on modules, to be taken off again. Make it before, `note` after.

    Only for meshes of one process: nothing is communicated.
    """

    def __init__(self, root: nn.Module) -> None:
        self._before = [(module, module.__class__, set(module.__dict__)) for module in root.modules()]
        self._added: list[set[str]] = []

    def note(self) -> None:
        """Tell what sharding added from what the user's code adds later."""
        self._added = [set(module.__dict__) - keys for module, _, keys in self._before]

    def remove(self) -> None:
        """Bring back classes and hooks, with parameters and gradients as plain tensors of today's values."""
        plain: dict[int, nn.Parameter] = {}
        for (module, cls, _), added in zip(self._before, self._added):
            module.__class__ = cls
            for key in added & module.__dict__.keys():
                del module.__dict__[key]
            for key, hooks in module.__dict__.items():
                if "_hooks" in key and isinstance(hooks, dict):
                    for handle in [handle for handle, hook in hooks.items() if _is_torchs(hook)]:
                        del hooks[handle]
            for name, parameter in module._parameters.items():
                if isinstance(parameter, DTensor):
                    if id(parameter) not in plain:
                        plain[id(parameter)] = _plain(parameter)
                    module._parameters[name] = plain[id(parameter)]


def _is_torchs(hook: Any) -> bool:
    # State dict hooks are wrapped.
    inner = getattr(hook, "hook", hook)
    return str(getattr(inner, "__module__", "")).startswith("torch.distributed.fsdp")


def _plain(parameter: Any) -> nn.Parameter:
    whole = nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad)
    if isinstance(parameter.grad, DTensor):
        whole.grad = parameter.grad.to_local()
    return whole
