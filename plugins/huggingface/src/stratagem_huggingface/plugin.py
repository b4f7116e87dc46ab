"""What stratagem-huggingface offers: the scheme `hf` of TARGET and `--data`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Describe what makes a module from `hf:FOLDER`, and data from `--data hf:FOLDER`."""
    return [
        Component(
            "model",
            "hf",
            "stratagem_huggingface.module:HFModule",
            "a model of transformers, from a folder, a config.json or a name of the Hub",
            requires=("transformers",),
            install_hint="pip install stratagem-huggingface",
        ),
        Component(
            "data",
            "hf",
            "stratagem_huggingface.data:HFData",
            "a dataset of datasets, from a folder of save_to_disk or a name of the Hub",
            requires=("datasets",),
            install_hint='pip install "stratagem-huggingface[data]"',
        ),
    ]
