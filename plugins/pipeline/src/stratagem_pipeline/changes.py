"""Detects what a training step changes besides gradients: buffers, parameters in place, and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from stratagem_sharding.class_names import class_name
from stratagem_sharding.torch_private import own_buffers
from torch import nn
from torch.utils.hooks import RemovableHandle

from stratagem.errors import DataError
from stratagem.sdk.tensors import leaves_in
from stratagem.sdk.torch_private import tensor_version
from stratagem_pipeline.torch_private import BATCH_NORM, forward_hooks, forward_pre_hooks

_Buffers = dict[tuple[str, nn.Module, str], tuple[torch.Tensor, int, torch.Tensor]]


@contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """Run a forward without lasting effect on buffers: restore them afterwards."""
    before = _buffers(module)
    try:
        yield
    finally:
        with torch.no_grad():
            for (_, owner, key), (buffer, version, value) in before.items():
                own_buffers(owner)[key] = buffer
                if tensor_version(buffer) != version or _changes_uncounted(owner):
                    buffer.copy_(value)


class Hooks:
    """Detects forward hooks that a step registers on layers. They would be missing on the ranks that run the layers.

    Args:
        name: of the pipelined module, for errors.
        layers: all of its layers.
    """

    def __init__(self, name: str, layers: Iterable[nn.Module]) -> None:
        self._name, self._layers = name, tuple(layers)
        self._before = 0

    def note(self) -> None:
        """Record which hooks exist now."""
        self._before = RemovableHandle.next_id

    def refuse_new(self) -> None:
        """Refuse hooks that were registered since `note`.

        Raises:
            DataError: names the module with a new hook.
        """
        if RemovableHandle.next_id == self._before:
            return
        for layer in self._layers:
            for name, module in layer.named_modules():
                hooks = (*forward_hooks(module), *forward_pre_hooks(module))
                if any(number >= self._before for number in hooks):
                    place = f"{class_name(module)} {name!r}" if name else class_name(module)
                    raise DataError(
                        f"the step registers forward hooks on layers of {self._name} ({place}), and in a pipeline "
                        "other ranks call these: compute with the output of the last layer alone (without "
                        "output_hidden_states, output_attentions or output_router_logits of transformers), or choose "
                        "ddp or fsdp"
                    )


class Changes:
    """Detects which tensors on this rank have changed since `note`.

    Args:
        module: the user's module.
        hooks: of the pipelined layers.
    """

    def __init__(self, module: nn.Module, hooks: Hooks) -> None:
        self._module, self._hooks = module, hooks
        self._before: _Buffers = {}
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self._flags: list[tuple[str, torch.Tensor, bool]] = []

    def note(self) -> None:
        """Record the current values, before a batch."""
        module = self._module
        self._hooks.note()
        self._before = _buffers(module, self._before)
        self._versions = [
            (name, p, tensor_version(p)) for name, p in module.named_parameters() if not p.is_meta
        ]
        self._flags = [(name, p, p.requires_grad) for name, p in module.named_parameters()]

    def refuse_parameters(self) -> None:
        """Refuse changes of the user's step to parameters, and hooks that it registered on layers.

        Raises:
            DataError: names the parameter that was changed in place, frozen or unfrozen, or the module with a hook.
        """
        self._hooks.refuse_new()
        for name, parameter, flag in self._flags:
            if parameter.requires_grad != flag:
                raise DataError(
                    f"training_step changes requires_grad of {name!r}, and a pipeline runs it for each part of a "
                    "batch, on some ranks, while the stages compute: change it in on_train_batch_start"
                )
        for name, parameter, version in self._versions:
            if tensor_version(parameter) != version:
                raise DataError(
                    f"training_step changes {name!r} in place, and a pipeline runs it for each part of a batch, on "
                    "some ranks, while the stages compute: change it in on_train_batch_end"
                )

    def buffers(self) -> dict[str, nn.Module]:
        """Return the names of changed buffers, with the modules that own them."""
        changed = {}
        for (name, owner, key), (buffer, version, value) in self._before.items():
            now = own_buffers(owner).get(key)
            if now is buffer and tensor_version(now) == version and not _changes_uncounted(owner):
                continue
            if now is None or now.shape != value.shape or not torch.equal(now, value):
                changed[name] = owner
        return changed

    def values(self, changed: dict[str, nn.Module], layers: set[int]) -> dict[str, torch.Tensor]:
        """Return changed buffers of modules outside of the stages: their ids aren't in `layers`."""
        names = [name for name, owner in changed.items() if id(owner) not in layers]
        return {name: self._module.get_buffer(name).detach() for name in names}

    def apply(self, values: dict[str, torch.Tensor]) -> None:
        """Set this rank's buffers to the result of `values` on another rank."""
        for name, value in values.items():
            prefix, _, key = name.rpartition(".")
            owner = self._module.get_submodule(prefix)
            buffer = own_buffers(owner)[key]
            if buffer is not None and buffer.shape == value.shape:
                buffer.copy_(value)
            else:
                own_buffers(owner)[key] = value.clone()


def why_refused(
    changed: dict[str, nn.Module],
    layers: set[int],
    *,
    micro_batches: int,
    recompute: bool,
    padded: bool,
    per_part: bool,
) -> str | None:
    """Return why changes of buffers differ from those of one forward; None if they don't, or are allowed.

    Args:
        changed: as `Changes.buffers` returned it.
        layers: ids of the modules in stages.
        micro_batches: number of micro-batches.
        recompute: whether layers of stages run again in backward.
        padded: whether micro-batches have padding rows.
        per_part: whether batch norms may use the statistics of micro-batches.
    """
    for name, owner in changed.items():
        norm = isinstance(owner, BATCH_NORM)
        if micro_batches > 1 and not (norm and per_part):
            return _once_for_each_part(name, owner, micro_batches)
        if recompute and id(owner) in layers:
            return (
                f"training changes the buffer {name!r}, and activation_checkpointing computes its layer twice: leave "
                f"activation_checkpointing out, or have {class_name(owner)} in evaluation mode"
            )
        if padded and norm:
            return (
                f"{name!r} would count rows that only pad a part of a batch: give batches that split into equal "
                "parts, as by drop_last=True"
            )
    return None


def why_kept(module: nn.Module, layers: set[int]) -> str | None:
    """Return why layers that store tensors of their forward are refused; None if no layer does.

    Args:
        module: the user's.
        layers: ids of the modules that run on this rank.
    """
    for prefix, each in module.named_modules():
        if id(each) in layers:
            for name, value in vars(each).items():
                if any(
                    isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves_in(value)
                ):
                    return (
                        f"{class_name(each)} {prefix!r} keeps a tensor of its forward as {name!r}, which only its "
                        "rank has in a pipeline, of the last part of the batch alone: return it to the next layer, "
                        "detach it if you only look at it, or choose ddp or fsdp"
                    )
    return None


def _once_for_each_part(name: str, owner: nn.Module, micro_batches: int) -> str:
    norm = isinstance(owner, BATCH_NORM)
    also = ", or batch_statistics_per_part=True to have the statistics of parts" if norm else ""
    return (
        f"training changes the buffer {name!r}, once for each of the {micro_batches} parts of a batch, not once per "
        f"batch: choose micro_batches=1 (with schedule='gpipe'), or have {class_name(owner)} in evaluation mode{also}"
    )


def refuse_batch_norms(module: nn.Module, micro_batches: int) -> None:
    """Refuse batch norms, which would normalize each micro-batch separately, or fail on one of a single sample.

    Args:
        module: the user's.
        micro_batches: number of micro-batches; at least 2.

    Raises:
        DataError: names the first such layer.
    """
    for name, each in module.named_modules():
        if not isinstance(each, BATCH_NORM):
            continue
        if each.running_mean is not None:
            if each.training:
                raise DataError(_once_for_each_part(f"{name}.running_mean", each, micro_batches))
        else:
            raise DataError(
                f"{name!r}, a {class_name(each)}, normalizes each part of a batch separately: choose "
                "micro_batches=1 (with schedule='gpipe'), or batch_statistics_per_part=True for those of parts"
            )


def _changes_uncounted(owner: nn.Module) -> bool:
    """Whether buffers may change without a new version: `F.batch_norm` and `F.instance_norm` don't count versions."""
    # pytorch/pytorch#13402: batch_norm doesn't bump the version counter of its running statistics.
    return owner.training and "running_mean" in own_buffers(owner)


def _buffers(module: nn.Module, known: _Buffers | None = None) -> _Buffers:
    found: _Buffers = {}
    for prefix, owner in module.named_modules():
        for key, buffer in own_buffers(owner).items():
            if buffer is None or buffer.is_meta:
                continue
            place = (f"{prefix}.{key}" if prefix else key, owner, key)
            old = None if known is None else known.get(place)
            is_same = old is not None and old[0] is buffer and old[1] == tensor_version(buffer)
            if old is not None and is_same and not _changes_uncounted(owner):
                found[place] = old  # don't copy unchanged buffers, such as masks, for each batch
            else:
                found[place] = (buffer, tensor_version(buffer), buffer.detach().clone())
    return found
