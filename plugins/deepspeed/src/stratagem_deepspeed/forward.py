"""The module that the engine calls: the run's module, under the run's precision."""

from __future__ import annotations

from typing import Any

from torch import nn

from stratagem import SetupRequest


class Computed(nn.Module):
    """Converts inputs and enters autocast inside of the engine, since the engine disables autocast around itself."""

    def __init__(self, request: SetupRequest) -> None:
        super().__init__()
        self.module = request.module
        self.__dict__["_original"] = request.original_module
        self._precision = request.precision

    # The engine's own checkpoints use the parameter names of the user's module.

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_original"].named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_original"].state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_original"].load_state_dict(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._precision.converts_input:
            args = self._precision.convert_input(args)
            kwargs = self._precision.convert_input(kwargs)
        autocast = self._precision.autocast()
        if autocast is None:
            return self.module(*args, **kwargs)
        with autocast:
            return self.module(*args, **kwargs)
