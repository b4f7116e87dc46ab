"""What torch keeps private and strategies need: a module's own tensors, hooks of tensors, counts of writes."""

from stratagem.collectives.torch_private import store_of
from stratagem.strategies.torch_private import (
    MODULE_TABLES,
    PARAMETER_HOOKS,
    backward_hooks,
    own_buffers,
    own_children,
    own_parameters,
    own_table,
    own_tensors,
    post_accumulate_hooks,
    set_backward_hooks,
    set_post_accumulate_hooks,
    tensor_version,
)

__all__ = [
    "MODULE_TABLES",
    "PARAMETER_HOOKS",
    "backward_hooks",
    "own_buffers",
    "own_children",
    "own_parameters",
    "own_table",
    "own_tensors",
    "post_accumulate_hooks",
    "set_backward_hooks",
    "set_post_accumulate_hooks",
    "store_of",
    "tensor_version",
]
