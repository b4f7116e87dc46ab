"""Optimizer states by parameter name, from an engine that steps flat shards of many parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem import CheckpointError
from stratagem_deepspeed.masters import Scalars, scalars_of
from stratagem_deepspeed.parameters import own_shard, trained
from stratagem_deepspeed.swapping import resident, sub_group_of, write_shard

if TYPE_CHECKING:
    from stratagem import CheckpointReader

BATCH_BYTES = 64 * 2**20
"""How many bytes of a checkpoint are read at a time."""


class States:
    """Reads and writes optimizer states. Every method is collective.

    Args:
        engine: the DeepSpeed engine, at stage 1, 2 or 3.
        stage: the ZeRO stage.
        groups: names of the parameters in each of the engine's groups: those that require gradients.
        parameters: name → parameter.
        paused: see `IdleParameters`; changed by `write`.
    """

    def __init__(
        self,
        engine: Any,
        stage: int,
        groups: Sequence[Sequence[str]],
        parameters: Mapping[str, nn.Parameter],
        paused: dict[str, Scalars | None],
    ) -> None:
        self._zero = engine.optimizer
        self._optimizer: Optimizer = self._zero.optimizer
        self._stage, self._paused = stage, paused
        self._groups = [{name: parameters[name] for name in names} for names in groups]

    def read(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return every state by "optimizer/0/<name>/<state>", without parameters that have made no step.

        Args:
            keep: called with each full state; its return value is stored.
        """
        from deepspeed.utils import safe_get_full_optimizer_state

        # With several groups, the engine links only the first group, after its first step.
        self._link()
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter, flat, group in self._trained():
            counted = scalars_of(self._optimizer, flat, group)
            counted = self._paused.get(name, counted)
            if counted is None:
                continue
            for key, value in self._optimizer.state[flat].items():
                if isinstance(value, torch.Tensor) and value.shape == flat.shape:
                    with trained(parameter):
                        whole = safe_get_full_optimizer_state(parameter, key)
                    tensors[f"optimizer/0/{name}/{key}"] = keep(whole)
            for key, count in counted.items():
                tensors[f"optimizer/0/{name}/{key}"] = torch.tensor(count, dtype=torch.float32)
        return tensors

    def write(self, reader: CheckpointReader) -> None:
        """Load the states in a checkpoint.

        Raises:
            CheckpointError: the checkpoint has states for parameters that aren't trained here.
        """
        saved = self._saved(reader)
        self._make(reader, saved)
        batch: list[tuple[str, nn.Parameter, str, torch.Tensor]] = []
        size = 0
        for name, parameter, flat, _ in self._trained():
            for state, value in self._optimizer.state[flat].items():
                if not isinstance(value, torch.Tensor) or value.shape != flat.shape:
                    continue
                # A parameter that has made no step gets zeros, the engine's own initial states.
                shape = getattr(parameter, "ds_shape", parameter.shape)
                whole = torch.zeros(shape, dtype=torch.float32)
                batch.append((f"optimizer/0/{name}/{state}", parameter, state, whole))
                size += whole.numel() * whole.element_size()
                if size >= BATCH_BYTES:
                    self._write(reader, batch)
                    batch, size = [], 0
        self._write(reader, batch)

    def _write(
        self, reader: CheckpointReader, batch: Sequence[tuple[str, nn.Parameter, str, torch.Tensor]]
    ) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        reader.read({key: whole for key, _, _, whole in batch if key in reader.tensors})
        for _, parameter, state, whole in batch:
            if self._stage == 3:
                write_shard(self._zero, parameter, own_shard(parameter, whole), state)
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
        """Create every flat shard's states: zeros for tensors, and the saved counters of its parameters."""
        scalars = {
            f"optimizer/0/{name}/{state}": torch.zeros(reader.tensors[f"optimizer/0/{name}/{state}"].shape)
            for name, parameter, _, _ in self._trained()
            for state in saved.get(name, ())
            if not _is_whole(state, reader.tensors[f"optimizer/0/{name}/{state}"].shape, parameter)
        }
        reader.read(scalars)
        self._make_zeros(saved, scalars.keys())
        counted: dict[str, Scalars] = {name: {} for name in saved}
        for key, value in scalars.items():
            name, _, state = key[len("optimizer/0/") :].rpartition("/")
            counted[name][state] = value.item()
        shards: dict[int, list[tuple[str, nn.Parameter, torch.Tensor, dict[str, Any]]]] = {}
        for each in self._trained():
            shards.setdefault(id(each[2]), []).append(each)
        for named in shards.values():
            self._count(named, {name: counted[name] for name, *_ in named if name in counted})
        self._link()

    def _count(
        self,
        named: Sequence[tuple[str, nn.Parameter, torch.Tensor, dict[str, Any]]],
        counted: Mapping[str, Scalars],
    ) -> None:
        """Set a flat shard's counters to those of its parameter with the most steps."""
        ahead: Scalars = max(counted.values(), key=lambda scalars: scalars.get("step", 0.0), default={})
        for name, *_ in named:
            if counted and counted.get(name) != ahead:
                self._paused[name] = counted.get(name)
            else:
                self._paused.pop(name, None)
        _, _, flat, group = named[0]
        state = self._optimizer.state[flat]
        for key, count in ahead.items():
            if type(self._optimizer).__module__.startswith("torch."):
                on_device = bool(group.get("capturable") or group.get("fused"))
                device = flat.device if on_device else state[key].device if key in state else None
                state[key] = torch.tensor(count, dtype=torch.float32, device=device)
            elif "step" in group:
                group[key] = int(count)
            else:
                state[key] = int(count)

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

    def _link(self) -> None:
        """Let DeepSpeed's accessors per parameter find the existing states."""
        if self._stage == 3:
            return
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        for index, group in enumerate(self._groups):
            flat = self._optimizer.param_groups[index]["params"][0]
            lazy_init_hp_params_optimizer_state(list(group.values()), flat, self._optimizer.state)

    def _trained(self) -> Iterator[tuple[str, nn.Parameter, torch.Tensor, dict[str, Any]]]:
        """Yield each trained parameter: its name, the parameter, the flat shard that holds it, and its group."""
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
