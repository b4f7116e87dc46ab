"""What `stratagem conformance compile`, its presets and the tests try.

The kit's model is one Sequential of single layers, so that these are named as the blocks. The backend is one that
needs no C++ compiler, and whose operations are torch's own: it changes no bit.
"""

from __future__ import annotations

from stratagem_testing import ExtensionSubject

from stratagem_compile.extension import Compile


class BlocksOfLayers(Compile):
    """`Compile("blocks")` of the kit's layers."""

    def __init__(self) -> None:
        super().__init__("blocks", ("Linear", "Tanh"), backend="aot_eager")


class WholeModel(Compile):
    """`Compile("model")`."""

    def __init__(self) -> None:
        super().__init__("model", backend="aot_eager")


SUBJECTS = {
    "compile": ExtensionSubject(BlocksOfLayers),
    "compile_blocks": ExtensionSubject(BlocksOfLayers),
    "compile_model": ExtensionSubject(WholeModel),
}
