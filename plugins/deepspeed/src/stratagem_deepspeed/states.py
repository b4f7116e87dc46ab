"""The optimizer's states under parameters' names, from an engine that steps flat pieces of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem import CheckpointError
from stratagem_deepspeed.parameters import piece, trained
from stratagem_deepspeed.swapping import resident, sub_group_of, write_piece

if TYPE_CHECKING:
    from stratagem import CheckpointReader

BATCH_BYTES = 64 * 2**20
"""How much of a checkpoint is read at a time."""


class States:
    """Reads and writes optimizer states. Every method is collective.

    Args:
        engine: DeepSpeed's, at stage 1, 2 or 3.
        stage: which.
        groups: names of the parameters in each of the engine's groups: those that require gradients.
        parameters: name → parameter.
    """

    def __init__(
        self, engine: Any, stage: int, groups: Sequence[Sequence[str]], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self._zero = engine.optimizer
        self._optimizer: Optimizer = self._zero.optimizer
        self._stage = stage
        self._groups = [{name: parameters[name] for name in names} for names in groups]

    def read(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return every state by "optimizer/0/<name>/<state>".

        Args:
            keep: called with each whole state; what it returns is kept instead.
        """
        from deepspeed.utils import safe_get_full_optimizer_state

        # With several groups, the engine does this after the first one's first step, and not for the others.
        self._link()
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter, flat, group in self._trained():
            state = self._optimizer.state.get(flat, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == flat.shape:
                    with trained(parameter):
                        whole = safe_get_full_optimizer_state(parameter, key)
                    tensors[f"optimizer/0/{name}/{key}"] = keep(whole)
                elif isinstance(value, (torch.Tensor, int, float)):
                    tensors[f"optimizer/0/{name}/{key}"] = _scalar(value)
            if state and "step" not in state and "step" in group:
                # Some of the engine's own optimizers count per group.
                tensors[f"optimizer/0/{name}/step"] = _scalar(group["step"])
        return tensors

    def write(self, reader: CheckpointReader) -> None:
        """Take up the states in a checkpoint.

        Raises:
            CheckpointError: it has states for parameters that aren't trained here, or of one group's
                parameters some have made more steps than others.
        """
        saved = self._saved(reader)
        self._make(reader, saved)
        batch: list[tuple[str, nn.Parameter, str, torch.Tensor]] = []
        size = 0
        for name, parameter, _, _ in self._trained():
            for state in saved.get(name, ()):
                info = reader.tensors[f"optimizer/0/{name}/{state}"]
                if not _is_whole(state, info.shape, parameter):
                    continue
                whole = torch.empty(info.shape, dtype=torch.float32)
                batch.append((name, parameter, state, whole))
                size += whole.numel() * whole.element_size()
                if size >= BATCH_BYTES:
                    self._write(reader, batch)
                    batch, size = [], 0
        self._write(reader, batch)

    def _write(
        self, reader: CheckpointReader, batch: Sequence[tuple[str, nn.Parameter, str, torch.Tensor]]
    ) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        reader.read({f"optimizer/0/{name}/{state}": whole for name, _, state, whole in batch})
        for _, parameter, state, whole in batch:
            if self._stage == 3:
                write_piece(self._zero, parameter, piece(parameter, whole), state)
            else:
                safe_set_full_optimizer_state(parameter, whole.to(parameter.device), state)

    def _saved(self, reader: CheckpointReader) -> dict[str, list[str]]:
        trained = {name for name, _, _, _ in self._trained()}
        saved: dict[str, list[str]] = {}
        for key in reader.tensors:
            if key.startswith("optimizer/0/"):
                name, _, state = key[len("optimizer/0/") :].rpartition("/")
                if name not in trained:
                    raise CheckpointError(
                        f"the checkpoint has optimizer state for {name!r}, which isn't trained here"
                    )
                saved.setdefault(name, []).append(state)
        return saved

    def _make(self, reader: CheckpointReader, saved: Mapping[str, list[str]]) -> None:
        """Make every flat piece's states: zeros, and the numbers of its parameters."""
        scalars = {
            f"optimizer/0/{name}/{state}": torch.zeros(reader.tensors[f"optimizer/0/{name}/{state}"].shape)
            for name, parameter, _, _ in self._trained()
            for state in saved.get(name, ())
            if not _is_whole(state, reader.tensors[f"optimizer/0/{name}/{state}"].shape, parameter)
        }
        reader.read(scalars)
        self._make_zeros(saved, scalars.keys())
        made: dict[int, dict[str, Any]] = {}
        for name, _, flat, group in self._trained():
            state = made.setdefault(id(flat), self._optimizer.state[flat])
            for key in saved.get(name, ()):
                scalar = scalars.get(f"optimizer/0/{name}/{key}")
                if scalar is not None:
                    self._count(name, group, state, key, scalar, made)
        self._link()

    def _make_zeros(self, saved: Mapping[str, list[str]], scalars: Collection[str]) -> None:
        lacking: dict[int, tuple[nn.Parameter, torch.Tensor, set[str]]] = {}
        for name, parameter, flat, _ in self._trained():
            keys = {key for key in saved.get(name, ()) if f"optimizer/0/{name}/{key}" not in scalars}
            lacking.setdefault(id(flat), (parameter, flat, set()))[2].update(
                keys - self._optimizer.state[flat].keys()
            )
        for parameter, flat, keys in lacking.values():
            if not keys:
                continue
            with (
                resident(self._zero, sub_group_of(self._zero, parameter))
                if self._stage == 3
                else nullcontext()
            ):
                for key in sorted(keys):
                    self._optimizer.state[flat][key] = torch.zeros_like(flat.detach())

    def _count(
        self,
        name: str,
        group: dict[str, Any],
        state: dict[str, Any],
        key: str,
        value: torch.Tensor,
        made: dict[int, dict[str, Any]],
    ) -> None:
        seen = made.setdefault(-id(state), {})
        if seen.setdefault(key, value.item()) != value.item():
            raise CheckpointError(
                f"deepspeed counts one {key!r} for all parameters of a group, and in the checkpoint {name!r} has "
                f"{value.item():g} where another has {seen[key]:g}: load its weights alone, or choose strategy fsdp"
            )
        if type(self._optimizer).__module__.startswith("torch."):
            on_device = bool(group.get("capturable") or group.get("fused"))
            state[key] = value.to(state[key].device) if key in state else value.clone()
            if on_device:
                state[key] = value.to(next(iter(self._trained()))[2].device)
        elif "step" in group:
            group[key] = int(value.item())
        else:
            state[key] = int(value.item())

    def _link(self) -> None:
        """Let the engine's access per parameter find the states that there are."""
        if self._stage == 3:
            return
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        for index, group in enumerate(self._groups):
            flat = self._optimizer.param_groups[index]["params"][0]
            lazy_init_hp_params_optimizer_state(list(group.values()), flat, self._optimizer.state)

    def _trained(self) -> Iterator[tuple[str, nn.Parameter, torch.Tensor, dict[str, Any]]]:
        """Yield each trained parameter's name, itself, the flat piece that has its part, and its group."""
        for index, named in enumerate(self._groups):
            group = self._optimizer.param_groups[index]
            for name, parameter in named.items():
                yield name, parameter, self._flat(index, parameter), group

    def _flat(self, index: int, parameter: nn.Parameter) -> torch.Tensor:
        zero = self._zero
        if self._stage == 3:
            flat: torch.Tensor = zero.fp32_partitioned_groups_flat[sub_group_of(zero, parameter)]
            return flat
        first: torch.Tensor = self._optimizer.param_groups[index]["params"][0]
        return first


def _is_whole(state: str, shape: Sequence[int], parameter: Any) -> bool:
    return state != "step" and tuple(shape) == tuple(getattr(parameter, "ds_shape", parameter.shape))


def _scalar(value: torch.Tensor | float) -> torch.Tensor:
    return torch.as_tensor(float(value), dtype=torch.float32)
