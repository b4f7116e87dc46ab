"""What stratagem-compile offers: the extension `compile` and its presets."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The extension `compile`, for `--use`."""
    return [
        Component(
            "extension",
            "compile",
            "stratagem_compile.extension:Compile",
            "compiles each block of a model, or the whole model, by torch.compile",
            presets={"compile_blocks": {"what": "blocks"}, "compile_model": {"what": "model"}},
            conformance="stratagem_compile.conformance:SUBJECTS",
        )
    ]
