"""Linear layers that torchao computes: the same modules, with another class until the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import nn

from stratagem_float8.names import Recipe
from stratagem_float8.torchao_private import Float8Layer


def convert(layers: Iterable[nn.Linear], recipe: Recipe, emulate: bool) -> Callable[[], None]:
    """Give layers torchao's class and settings in place of `nn.Linear`; return what undoes it.

    Those that have the class already, of a module that is set up twice, are left to who gave it.
    """
    from torchao.float8 import Float8LinearConfig

    # Rows of a batch are padded to multiples of 16: the product for the gradient of a weight sums over them.
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    changed: list[tuple[nn.Linear, list[str]]] = []
    for layer in layers:
        if isinstance(layer, Float8Layer):
            continue
        made = Float8Layer.from_float(nn.Linear(layer.in_features, layer.out_features, device="meta"), config)
        settings = {name: value for name, value in vars(made).items() if name not in vars(layer)}
        # patch: float8 layers
        layer.__class__ = Float8Layer
        vars(layer).update(settings)
        changed.append((layer, list(settings)))

    def undo() -> None:
        for layer, names in changed:
            # patch: float8 layers
            layer.__class__ = nn.Linear
            for name in names:
                vars(layer).pop(name, None)

    return undo
