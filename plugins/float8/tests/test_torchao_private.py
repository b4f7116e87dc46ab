"""What is private in torchao is what this plugin takes it for."""

from __future__ import annotations

import torch
import torchao.float8
from stratagem_float8.torchao_private import Float8Layer
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training


def test_a_layer_has_the_class_that_torchao_converts_to() -> None:
    (made,) = convert_to_float8_training(
        nn.Sequential(nn.Linear(16, 16)), config=Float8LinearConfig(emulate=True)
    )
    assert type(made) is Float8Layer.__mro__[1]
    assert "Float8Linear" not in torchao.float8.__all__  # once it is public, import it from there


def test_torchao_has_no_autocast_of_the_cpu() -> None:
    """Once it has, `Float8Layer` needs no forward of its own."""
    config = Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp")
    object.__setattr__(config, "emulate", True)
    layer = nn.Linear(16, 16)
    own = Float8Layer.from_float(layer, config)
    (theirs,) = convert_to_float8_training(nn.Sequential(layer), config=config)
    value = torch.randn(4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert own(value).dtype is torch.bfloat16
        # Rounded to bfloat16 first, numbers in float8 are others.
        assert torch.equal(own(value), theirs(value.bfloat16()))
        assert not torch.equal(own(value), theirs(value))
