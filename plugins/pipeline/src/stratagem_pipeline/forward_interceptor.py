"""Replaces the pipelined module's forward while a step of the user's module runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from stratagem.errors import DataError


class _Reached(BaseException):
    """Leaves a step at its call of the pipelined module. A user's `except Exception` doesn't catch it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = (args, kwargs)


class ForwardInterceptor:
    """Intercepts a step's calls of the pipelined module.

    Args:
        net: the pipelined module; steps may call it under any name.
        name: its name in the user's module, for errors.
    """

    every_tensor_has_rows = True
    """Whether all tensors in the first layer's input have a row per sample; if False, only the first has."""

    def __init__(self, net: nn.Module, name: str) -> None:
        self.net, self.name = net, name

    def call_layer(self, layer: nn.Module, value: Any) -> Any:
        """Return a layer's output for its input."""
        return layer(value)

    @contextmanager
    def patched(self, forward: Callable[..., Any]) -> Iterator[None]:
        """While active, a call of the module calls `forward` instead of the module's own."""
        own = self.net.__dict__.get("forward")
        # On the instance, where Module.__call__ finds it first. The module's hooks still run around it.
        # patch: pipelined forward
        self.net.__dict__["forward"] = forward
        try:
            yield
        finally:
            del self.net.__dict__["forward"]
            if own is not None:
                # patch: pipelined forward
                self.net.__dict__["forward"] = own

    def capture_call(
        self, step: Callable[[], Any], check: Callable[[], None] = lambda: None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run a step up to its call of the module; return the arguments of that call.

        Args:
            step: the user's step.
            check: called when the step calls the module.

        Raises:
            DataError: the step never calls the module.
        """

        def leave(*args: Any, **kwargs: Any) -> Any:
            check()
            raise _Reached(args, kwargs)

        with self.patched(leave):
            try:
                step()
            except _Reached as reached:
                return reached.arguments
        raise DataError(
            f"training_step never called {self.name}, the pipelined module, and a pipeline runs its stages in every "
            f"step: call {self.name} once per step"
        )

    def run_with_output(self, step: Callable[[], Any], output: Any, check: Callable[[], None]) -> Any:
        """Run a step whose call of the module returns `output`; return what the step returns.

        Args:
            step: the user's step.
            output: of the last stage.
            check: called when the step calls the module.

        Raises:
            DataError: the step calls the module more than once, or never.
        """
        calls = 0

        def return_output(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            check()
            calls += 1
            if calls > 1:
                raise DataError(
                    f"training_step called {self.name}, the pipelined module, {calls} times, and the "
                    "schedule runs it "
                    f"once per step: call {self.name} once, with all that it is to compute in one batch"
                )
            return output

        with self.patched(return_output):
            result = step()
        if not calls:
            raise DataError(
                f"training_step called {self.name}, the pipelined module, on the first stage and not on the last: "
                "call it once per step, whatever the rank"
            )
        return result
