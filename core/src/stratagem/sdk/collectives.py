"""For strategies with their own collectives."""

from stratagem.collectives.arguments import check_reduction, check_tensor
from stratagem.collectives.base import ReduceOp
from stratagem.collectives.closures import mean_closure, mean_loss
from stratagem.collectives.group import GroupCollectives
from stratagem.collectives.torch_private import forget_meshes

__all__ = [
    "GroupCollectives",
    "ReduceOp",
    "check_reduction",
    "check_tensor",
    "forget_meshes",
    "mean_closure",
    "mean_loss",
]
