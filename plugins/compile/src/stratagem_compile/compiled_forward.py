"""The forward of a compiled module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stratagem import ConfigError
from stratagem_compile.report import CompileReport
from stratagem_compile.torch_private import compiler_error


class CompiledForward:
    """A module's forward that torch compiles in its first call, and which says whose it is where that fails.

    An object with bound methods, so that `copy.deepcopy` of the module gives a copy with its own forward. A copy
    isn't compiled: what torch compiled is bound to the module itself.

    Args:
        module: its forward isn't replaced yet.
        label: the module, for errors.
        backend: the backend, for errors.
        report: gets each call.
        options: of `torch.compile`.
    """

    def __init__(
        self, module: nn.Module, label: str, backend: str, report: CompileReport, options: dict[str, Any]
    ) -> None:
        self.original_forward = module.forward
        forward: Any = module.forward
        original = forward if inspect.isroutine(forward) else forward.__call__
        self.compiled_forward: Callable[..., Any] | None = torch.compile(original, **options)
        self._label, self._backend = label, backend
        self._report: CompileReport | None = report
        self._error = compiler_error()

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the user's forward: a strategy that looks for one of its arguments finds it."""
        return inspect.signature(self.original_forward)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "compiled_forward": None, "_report": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Within a forward that is compiled itself, this one becomes a part of its graph.
        if torch.compiler.is_compiling() or self.compiled_forward is None:
            return self.original_forward(*args, **kwargs)
        if self._report is not None:
            self._report.count_forward(self)
        try:
            return self.compiled_forward(*args, **kwargs)
        except self._error as error:
            cause = getattr(error, "inner_exception", error)
            first = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
            raise ConfigError(
                f"{self._label} can't be compiled by backend={self._backend!r}: {type(cause).__name__}: "
                f"{first.strip()}; name other modules by Compile(modules=[...]), or another backend, as "
                'backend="aot_eager"'
            ) from error
