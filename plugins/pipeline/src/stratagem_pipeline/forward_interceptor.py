"""What takes the place of the pipelined module while a step of the user's module runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from stratagem.errors import DataError


class _Reached(BaseException):
    """Leaves a step where it calls the pipelined module; no `except Exception` of a user stops it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.called_with = (args, kwargs)


class ForwardInterceptor:
    """Lets steps call the pipelined module as ever, and decides what that does.

    Args:
        net: the pipelined module, which steps may reach by any path.
        name: its name in the user's module, for errors.
    """

    every_tensor_has_rows = True
    """Whether all tensors that the first layer gets have a row per sample, not only the first one."""

    def __init__(self, net: nn.Module, name: str) -> None:
        self.net, self.name = net, name

    def call_layer(self, layer: nn.Module, value: Any) -> Any:
        """Return what a layer makes of what goes into it."""
        return layer(value)

    @contextmanager
    def acting(self, forward: Callable[..., Any]) -> Iterator[None]:
        """While active, a call of the module calls `forward` instead of its own."""
        own = self.net.__dict__.get("forward")
        # On the instance, where calls look first; hooks of the module stay around it.
        # patch: pipelined forward
        self.net.__dict__["forward"] = forward
        try:
            yield
        finally:
            del self.net.__dict__["forward"]
            if own is not None:
                # patch: pipelined forward
                self.net.__dict__["forward"] = own

    def called_with(
        self, step: Callable[[], Any], check: Callable[[], None] = lambda: None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run a step up to where it calls the module; return what it calls it with.

        Args:
            step: the user's.
            check: is called where the step calls the module.

        Raises:
            DataError: it never does.
        """

        def leave(*args: Any, **kwargs: Any) -> Any:
            check()
            raise _Reached(args, kwargs)

        with self.acting(leave):
            try:
                step()
            except _Reached as reached:
                return reached.called_with
        raise DataError(
            f"training_step never called {self.name}, the pipelined module, and a pipeline runs its stages in every "
            f"step: call {self.name} once per step"
        )

    def answered(self, step: Callable[[], Any], output: Any, check: Callable[[], None]) -> Any:
        """Run a step whose call of the module returns `output`; return what the step returns.

        Args:
            step: the user's.
            output: of the last stage.
            check: is called where the step calls the module.

        Raises:
            DataError: it calls the module again, or never.
        """
        calls = 0

        def answer(*args: Any, **kwargs: Any) -> Any:
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

        with self.acting(answer):
            result = step()
        if not calls:
            raise DataError(
                f"training_step called {self.name}, the pipelined module, on the first stage and not on the last: "
                "call it once per step, whatever the rank"
            )
        return result
