"""What `stratagem conformance activations`, its presets and the tests try.

The kit's model is one Sequential of single layers, so that these are named as the blocks.
"""

from __future__ import annotations

from stratagem_testing import ExtensionSubject

from stratagem_activations.extension import Activations

_LAYERS = ("Linear", "Tanh")


class FullOfLayers(Activations):
    """`Activations("full")` of the kit's layers."""

    def __init__(self) -> None:
        super().__init__("full", _LAYERS)


class SelectiveOfLayers(Activations):
    """`Activations("selective")` of the kit's layers."""

    def __init__(self) -> None:
        super().__init__("selective", _LAYERS)


class OffloadOfLayers(Activations):
    """`Activations("offload")` of the kit's layers."""

    def __init__(self) -> None:
        super().__init__("offload", _LAYERS)


SUBJECTS = {
    "activations": ExtensionSubject(FullOfLayers),
    "activations_full": ExtensionSubject(FullOfLayers),
    "activations_selective": ExtensionSubject(SelectiveOfLayers),
    "activations_offload": ExtensionSubject(OffloadOfLayers),
}
