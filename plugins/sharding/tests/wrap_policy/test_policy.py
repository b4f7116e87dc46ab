"""Which modules are sharded by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from blocks import Block, Blocks
from stratagem_sharding.wrap_policy import callable_children, modules_named, units_among
from torch import nn
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


def chosen(root: nn.Module, policy: Any) -> list[str]:
    names = {module: name for name, module in root.named_modules()}
    return [names[module] for module in units_among(root, modules_named(root, policy))]


BLOCKS = ["blocks.2", "blocks.1", "blocks.0"]


@pytest.mark.parametrize(
    "policy",
    [
        None,
        {Block},
        ["Block"],
        Block,
        ModuleWrapPolicy({Block}),
        CustomPolicy(lambda module: isinstance(module, Block)),
        partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        partial(size_based_auto_wrap_policy, min_num_params=200),
    ],
)
def test_every_form_of_a_policy_finds_the_blocks(policy: Any) -> None:
    assert chosen(Blocks(), policy) == BLOCKS


def test_tied_modules_stay_together_in_what_contains_them() -> None:
    names = chosen(Blocks(), always_wrap_policy)
    assert {"out", "unused", "blocks.0", "blocks.0.up"} <= set(names)
    assert not {"embedding", "head", "blocks", ""} & set(names)
    assert names.index("blocks.0.up") < names.index("blocks.0")


def test_a_sequence_of_blocks_is_found_and_one_of_layers_is_not() -> None:
    root = nn.ModuleDict(
        {"layers": nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "blocks": nn.Sequential(Block(), Block())}
    )
    assert chosen(root, None) == ["blocks.1", "blocks.0"]


def test_called_parts_look_into_containers() -> None:
    root = nn.ModuleDict(
        {"one": nn.Linear(1, 1), "more": nn.ModuleList([Block(), nn.ModuleDict({"in": Block()})])}
    )
    names = {module: name for name, module in root.named_modules()}
    assert [names[part] for part in callable_children(root)] == ["one", "more.0", "more.1.in"]
