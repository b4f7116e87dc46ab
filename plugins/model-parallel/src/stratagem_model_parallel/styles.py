"""Styles for splitting a single layer: torch's, further ones for transformer blocks, and their short names."""

from __future__ import annotations

from functools import partial
from typing import Any, Union

import torch
from stratagem_sharding.torch_private import own_parameters
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from stratagem import ConfigError
from stratagem.sdk.loops import forked_rng
from stratagem_model_parallel.sequence import EnterSequence, LeaveSequence, WholeInput

Style = Union[ParallelStyle, str]
"""A style of torch, your own style, or one of the names in `SPELLINGS`."""


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D: a linear layer with a weight of shape (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and not isinstance(module, nn.Conv1d)


def split(module: nn.Module, name: str, mesh: DeviceMesh, dim: int | None) -> None:
    """Make parameter `name` a DTensor: a shard of dimension `dim`, or replicated. Not collective."""
    whole = own_parameters(module).get(name)
    if whole is not None:
        placement = Replicate() if dim is None else Shard(dim)
        parts = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(parts, requires_grad=whole.requires_grad))


class Colwise(ColwiseParallel):
    """Torch's ColwiseParallel, also for transformers' Conv1D: each rank computes some of the outputs."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        split(module, "weight", device_mesh, 1)
        split(module, "bias", device_mesh, 0)
        taken = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        given = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, None, taken, given)


class Packed(Colwise):
    """Colwise for a layer that computes several tensors at once, such as queries, keys and values.

    A rank has one contiguous shard of the weight, as in checkpoints, but needs a slice of each output tensor. So
    outputs are gathered, and each rank takes its slices.

    Args:
        parts: number of output tensors, of equal size.
    """

    def __init__(self, parts: int = 3) -> None:
        super().__init__()
        self.parts = parts

    def _prepare_output_fn(  # type: ignore[override]  # an instance's here, torch's is static
        self,
        output_layouts: Any,
        use_local_output: bool,
        mod: nn.Module,
        outputs: DTensor,
        device_mesh: DeviceMesh,
    ) -> torch.Tensor:
        return own_parts(outputs, self.parts, device_mesh)


def own_parts(outputs: DTensor, parts: int, mesh: DeviceMesh) -> torch.Tensor:
    """Return this rank's slice of each of `parts` in the last dimension of `outputs`. Collective."""
    # Each rank uses some of the gathered outputs: their gradient is the sum over ranks.
    whole = outputs.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    rank, size = mesh.get_local_rank(), mesh.size()
    return torch.cat([part.chunk(size, -1)[rank] for part in whole.chunk(parts, -1)], -1)


class Rowwise(RowwiseParallel):
    """Torch's RowwiseParallel, also for transformers' Conv1D: ranks use some of the inputs and add up outputs.

    Ranks may have unequal numbers of inputs; torch's own style assumes that all have as many as this rank.
    """

    @staticmethod
    def _prepare_input_fn(
        input_layouts: Any, desired_input_layouts: Any, mod: nn.Module, inputs: Any, device_mesh: DeviceMesh
    ) -> Any:
        x = inputs[0]
        if tuple(input_layouts) == (Shard(-1),) and not isinstance(x, DTensor):
            weight = own_parameters(mod)["weight"]
            shape = torch.Size((*x.shape[:-1], weight.shape[0 if is_transposed(mod) else 1]))
            stride = torch.empty(shape, device="meta").stride()
            whole = DTensor.from_local(
                x, device_mesh, input_layouts, run_check=False, shape=shape, stride=stride
            )
            inputs = (whole, *inputs[1:])
        return RowwiseParallel._prepare_input_fn(  # type: ignore[no-untyped-call]  # torch has no types for it
            input_layouts, desired_input_layouts, mod, inputs, device_mesh
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        split(module, "weight", device_mesh, 0)
        split(module, "bias", device_mesh, None)
        taken = partial(self._prepare_input_fn, self.input_layouts, (Shard(-1),))
        given = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, None, taken, given)


class LocalDropout(ParallelStyle):
    """Dropout on sharded activations, for which ranks must draw different numbers.

    Ranks that read the same batches have the same seed. This style adds the rank to it, and leaves later random
    numbers equal on all ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # patch: replaced forwards
        module.forward = partial(_draw_apart, module.forward, module, device_mesh.get_local_rank())
        return module


def _draw_apart(forward: Any, module: nn.Module, rank: int, x: torch.Tensor) -> Any:
    if not module.training:
        return forward(x)
    # From the default generator, which activation checkpointing restores, so that recomputation draws the same.
    seed = int(torch.randint(2**62, ())) + rank
    with forked_rng(x.device):
        torch.manual_seed(seed)
        return forward(x)


SPELLINGS = {
    "colwise": "a shard of the outputs per rank",
    "colwise_gathered": "as colwise, and every rank gets all outputs",
    "colwise_sequence": "as colwise, from a shard of the sequence",
    "logits": "as colwise, outputs stay a DTensor, for loss_parallel",
    "packed": "as colwise, for queries, keys and values in one layer",
    "packed:2": "as packed, for another number of things",
    "rowwise": "a shard of the inputs per rank, outputs added up",
    "rowwise_sequence": "as rowwise, and each rank gets a shard of the sequence",
    "sequence": "each rank computes its shard of the sequence: layer norms",
    "whole_input": "the layers within share one input, whose gradient is added up once",
    "whole_input_sequence": "as whole_input, gathered from shards of the sequence",
    "enter_sequence": "from here on each rank has a shard of the sequence",
    "leave_sequence": "from here on every rank has all of the sequence",
    "attention": "torch.nn.MultiheadAttention: some of the heads per rank",
    "attention_sequence": "as attention, from and to shards of the sequence",
    "local_dropout": "dropout of what each rank has another part of",
}
"""Name of a style → its description."""

LINEAR = ("colwise", "packed", "rowwise", "logits")


def style_for(given: Any, name: str, module: nn.Module, sequence_dim: int = 1) -> ParallelStyle:
    """Return the style that a plan gives the module `name`.

    Args:
        given: a style, or a name from `SPELLINGS`.
        name: of the module, for errors.
        module: its class decides between variants of a style.
        sequence_dim: the sequence dimension of activations.

    Raises:
        ConfigError: there is no such style, or it isn't for modules of this class.
    """
    if isinstance(given, ParallelStyle):
        return given
    base, _, number = given.partition(":") if isinstance(given, str) else ("", "", "")
    if base not in SPELLINGS or (number and (base != "packed" or not number.isdigit())):
        raise ConfigError(
            f"the plan gives {name!r} the style {given!r}: give a torch.distributed.tensor.parallel.ParallelStyle, "
            f"or one of {', '.join(SPELLINGS)}"
        )
    splittable = isinstance(module, (nn.Linear, nn.Embedding)) or is_transposed(module)
    if base.startswith(LINEAR) and not splittable:
        raise ConfigError(
            f"the plan gives {name!r}, a {type(module).__name__}, the style {given!r}, which is for Linear, "
            "Embedding and transformers' Conv1D: name the layers in it"
        )
    return _spelled(base, int(number or 3), module, Shard(sequence_dim))


def _spelled(base: str, parts: int, module: nn.Module, sequence: Shard) -> ParallelStyle:
    from stratagem_model_parallel.attention import Attention

    # Torch assumes that a rowwise layer's input is sharded, but token ids are replicated.
    tokens: dict[str, Any] = {"input_layouts": Replicate()} if isinstance(module, nn.Embedding) else {}
    made: dict[str, Any] = {
        "colwise": lambda: Colwise(),
        "colwise_gathered": lambda: Colwise(output_layouts=Replicate()),
        "colwise_sequence": lambda: Colwise(input_layouts=sequence),
        "logits": lambda: Colwise(use_local_output=False),
        "packed": lambda: Packed(parts),
        "rowwise": lambda: Rowwise(**tokens),
        "rowwise_sequence": lambda: Rowwise(**tokens, output_layouts=sequence),
        "sequence": lambda: SequenceParallel(sequence_dim=sequence.dim, use_local_output=True),
        "whole_input": lambda: WholeInput(None),
        "whole_input_sequence": lambda: WholeInput(sequence.dim),
        "enter_sequence": lambda: EnterSequence(sequence.dim),
        "leave_sequence": lambda: LeaveSequence(sequence.dim),
        "attention": lambda: Attention(None),
        "attention_sequence": lambda: Attention(sequence.dim),
        "local_dropout": lambda: LocalDropout(),
    }
    style: ParallelStyle = made[base]()
    return style
