"""Private names of torch for tensors and stores: hooks of tensors, counts of writes, a group's store."""

from stratagem.collectives.torch_private import store_of
from stratagem.strategies.torch_private import (
    PARAMETER_HOOKS,
    operation_name,
    tensor_version,
    without_subclass_functions,
)

__all__ = ["PARAMETER_HOOKS", "operation_name", "store_of", "tensor_version", "without_subclass_functions"]
