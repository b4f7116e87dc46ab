"""Names in the user's model, without the modules that libraries wrap around it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

WRAPPED_AS = frozenset(
    {
        "module",
        "_orig_mod",
        "_fsdp_wrapped_module",
        "_checkpoint_wrapped_module",
        "_forward_module",
        "_original_module",
        "_pytorch_module",
    }
)
"""Attributes in which wrappers of libraries keep what they wrap."""
LIBRARIES = frozenset(
    {"torch", "deepspeed", "accelerate", "fairscale", "lightning", "lightning_fabric", "pytorch_lightning"}
)
"""Packages whose wrappers are left out of names; a user's own module of one child keeps its name."""


def named_modules(root: nn.Module) -> dict[str, nn.Module]:
    """Return name → module of the user's model, "" for itself; wrappers have no names of their own."""
    return {name: module for name, module, _ in _walk(root)}


def called_modules(root: nn.Module) -> dict[str, nn.Module]:
    """Return name → what is called for it: a compiled module's wrapper, as hooks within it would be compiled."""
    return {
        name: next((each for each in wrappers if type(each).__name__ == "OptimizedModule"), module)
        for name, module, wrappers in _walk(root)
    }


def named_parameters(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter), a parameter under each of its names."""
    for name, module, wrappers in _walk(root):
        for owner in (*wrappers, module):
            for own, parameter in owner.named_parameters(recurse=False):
                yield joined(name, own), parameter


def named_buffers(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, buffer)."""
    for name, module, _ in _walk(root):
        for own, buffer in module.named_buffers(recurse=False):
            yield joined(name, own), buffer


def joined(module: str, own: str) -> str:
    """Return the name of something that a module has."""
    return f"{module}.{own}" if module else own


def _walk(
    module: nn.Module, name: str = "", seen: set[nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module, tuple[nn.Module, ...]]]:
    """Yield (name, module, wrappers around it, outermost first)."""
    seen = set() if seen is None else seen
    wrappers: list[nn.Module] = []
    while (inner := _wrapped(module)) is not None:
        wrappers.append(module)
        module = inner
    if module in seen:
        return
    seen.add(module)
    yield name, module, tuple(wrappers)
    for own, child in module.named_children():
        yield from _walk(child, joined(name, own), seen)


def _wrapped(module: nn.Module) -> nn.Module | None:
    if type(module).__module__.partition(".")[0] not in LIBRARIES:
        return None
    children = dict(module.named_children())
    if len(children) == 1 and (name := next(iter(children))) in WRAPPED_AS:
        return children[name]
    # An engine has other children, such as a loss; what it wraps is under the usual name.
    if type(module).__name__ == "DeepSpeedEngine":
        return children.get("module")
    return None
