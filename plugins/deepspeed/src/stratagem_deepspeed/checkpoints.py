"""Converts an engine's state to the checkpoint layout that every strategy reads, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.shards import row_shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from stratagem import CheckpointError
from stratagem.sdk.states import describe_optimizer, load_optimizer, optimizer_tensors
from stratagem_deepspeed.parameters import Parameters, named
from stratagem_deepspeed.states import BATCH_BYTES, States

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem import CheckpointReader, SetupRequest
    from stratagem_deepspeed.masters import Scalars
    from stratagem_deepspeed.optimizer import Groups
    from stratagem_deepspeed.prepared import DeepSpeedPrepared


class EngineCheckpoint:
    """Reads and writes an engine's state, one parameter at a time. Every method is collective.

    Args:
        prepared: holds the engine.
        parameters: access to the engine's parameters.
        states: access to the engine's optimizer states; None at stage 0, or where nothing is trained.
        groups: the optimizer's groups and names.
        mesh: all ranks; None for one process.

    Attributes:
        parameters: as given.
    """

    def __init__(
        self,
        prepared: DeepSpeedPrepared,
        parameters: Parameters,
        states: States | None,
        groups: Groups,
        mesh: DeviceMesh | None,
    ) -> None:
        self._prepared, self.parameters, self._states = prepared, parameters, states
        self._groups, self._mesh = groups, mesh

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters, of which each rank keeps a row shard, and buffers."""
        parameters, buffers = named(self._prepared.original_module)
        kept: dict[int, torch.Tensor] = {}
        for parameter in parameters.values():
            if id(parameter) not in kept:
                kept[id(parameter)] = self._keep(self.parameters.read(parameter))
        tensors = {f"model/{name}": kept[id(parameter)] for name, parameter in parameters.items()}
        return {**tensors, **{f"model/{name}": buffer for name, buffer in buffers.items()}}

    def whole_parameters(self) -> dict[int, tuple[nn.Parameter, torch.Tensor]]:
        """Return every parameter with a copy of its full value, by id."""
        return {
            id(p): (p, self.parameters.read(p).clone()) for p in self._prepared.original_module.parameters()
        }

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """Return the optimizer states, in the same row shards as the parameters."""
        if self._states is not None:
            return self._states.read(self._keep)
        return optimizer_tensors(self._prepared.original_module, self._prepared.optimizers)

    def _keep(self, whole: torch.Tensor) -> torch.Tensor:
        return row_shard(whole, self._mesh)

    def state(self) -> dict[str, Any]:
        """Return the optimizer's groups, extra states of modules, the engine's scheduler and its loss scale."""
        prepared = self._prepared
        # keep_vars: at stage 3 no rank has full parameters, so only the non-tensor entries are used.
        plain_state = prepared.original_module.state_dict(keep_vars=True)
        state: dict[str, Any] = {
            "optimizers": [self._describe()] if prepared.optimizers else [],
            "extra": {name: v for name, v in plain_state.items() if not isinstance(v, torch.Tensor)},
            "precision": prepared.precision.state_dict(),
        }
        scheduler = getattr(prepared.engine, "lr_scheduler", None)
        if scheduler is not None:
            state["deepspeed_scheduler"] = scheduler.state_dict()
        scaler = _scaler(prepared.engine)
        if scaler is not None:
            state["precision"] = {**state["precision"], "scale": float(scaler.cur_scale)}
        return state

    def _describe(self) -> dict[str, Any]:
        (optimizer,) = self._prepared.optimizers
        if self._states is None:
            return describe_optimizer(self._prepared.original_module, optimizer)
        groups = [{**group, "params": list(names)} for group, names in self._groups]
        return {"class": type(optimizer).__name__, "groups": groups, "values": {}}

    def load(self, reader: CheckpointReader, state: dict[str, Any], model_only: bool) -> None:
        """Load a checkpoint that any strategy wrote."""
        self._load_model(reader, state.get("extra", {}))
        if model_only or not self._prepared.optimizers:
            return
        saved = state.get("optimizers", [])
        if self._states is not None:
            self._load_groups(saved)
            self._states.write(reader)
        else:
            load_optimizer(self._prepared.original_module, self._prepared.optimizers[0], 0, reader, saved)
        precision = dict(state.get("precision", {}))
        scaler = _scaler(self._prepared.engine)
        if scaler is not None and "scale" in precision:
            scaler.cur_scale = float(precision["scale"])
        scheduler = getattr(self._prepared.engine, "lr_scheduler", None)
        if scheduler is not None:
            if "deepspeed_scheduler" not in state:
                raise CheckpointError(
                    "the checkpoint was written without the learning rate scheduler of this run's DeepSpeed "
                    "configuration: load its weights alone, or leave the scheduler out"
                )
            scheduler.load_state_dict(state["deepspeed_scheduler"])

    def _load_groups(self, saved: Sequence[dict[str, Any]]) -> None:
        if len(saved) != 1:
            raise CheckpointError(
                f"the checkpoint has {len(saved)} optimizers, and deepspeed steps one: load its weights alone, or "
                "choose strategy fsdp or ddp"
            )
        theirs = [group["params"] for group in saved[0]["groups"]]
        ours = [names for _, names in self._groups]
        if [sorted(names) for names in ours] != [sorted(names) for names in theirs]:
            raise CheckpointError(
                f"the checkpoint's optimizer has parameter groups of {[len(names) for names in theirs]} parameters, "
                f"this run's of {[len(names) for names in ours]}, or with other names: configure the same groups"
            )
        for (group, _), values in zip(self._groups, saved[0]["groups"]):
            for key, value in values.items():
                if key != "params" and key in group:
                    group[key] = tuple(value) if isinstance(group[key], tuple) else value

    def _load_model(self, reader: CheckpointReader, extra: dict[str, Any]) -> None:
        original_module = self._prepared.original_module
        parameters, buffers = named(original_module)
        targets = {f"model/{name}" for name in (*parameters, *buffers)}
        saved = {key for key in reader.tensors if key.startswith("model/")}
        if targets != saved:
            raise CheckpointError(
                f"the checkpoint was made by another module: missing keys: "
                f"{_some(targets - saved)}; unexpected keys: {_some(saved - targets)}"
            )
        with torch.no_grad():
            reader.read({f"model/{name}": buffer for name, buffer in buffers.items()})
        batch: list[tuple[str, nn.Parameter]] = []
        size = 0
        first = {id(parameter): (name, parameter) for name, parameter in reversed(parameters.items())}
        for name, parameter in first.values():
            batch.append((name, parameter))
            size += _numel(reader, name) * 4
            if size >= BATCH_BYTES:
                self._write(reader, batch)
                batch, size = [], 0
        self._write(reader, batch)
        if extra:
            # set_extra_state is only reachable through load_state_dict.
            original_module.load_state_dict(extra, strict=False)

    def _write(self, reader: CheckpointReader, batch: Sequence[tuple[str, nn.Parameter]]) -> None:
        wholes = {}
        for name, parameter in batch:
            shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
            dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
            wholes[f"model/{name}"] = torch.empty(shape, dtype=dtype)
        reader.read(wholes)
        for name, parameter in batch:
            self.parameters.write(parameter, wholes[f"model/{name}"])


def engine_checkpoint(
    prepared: DeepSpeedPrepared,
    request: SetupRequest,
    config: dict[str, Any],
    groups: Groups,
    live: Sequence[Sequence[str]],
    paused: dict[str, Scalars | None],
) -> EngineCheckpoint:
    """Return checkpoint access to an engine that has just been started. Collective.

    Args:
        prepared: holds the engine.
        request: as the `setup` hook received it.
        config: the engine's complete configuration.
        groups: the optimizer's groups and names.
        live: names of the parameters in each of the engine's groups.
        paused: see `IdleParameters`.
    """
    parameters = dict(request.original_module.named_parameters())
    trained = [parameters[name] for names in live for name in names]
    halved = config["bf16"]["enabled"] or config["fp16"]["enabled"]
    states = None
    if trained and prepared.stage:
        states = States(prepared.engine, prepared.stage, live, parameters, paused)
    mesh = None
    if request.collectives.world_size > 1:
        mesh = init_device_mesh(request.device.type, (request.collectives.world_size,))
    return EngineCheckpoint(prepared, Parameters(prepared.stage, trained, halved), states, groups, mesh)


def _numel(reader: CheckpointReader, name: str) -> int:
    return int(torch.Size(reader.tensors[f"model/{name}"].shape).numel())


def _scaler(engine: Any) -> Any:
    scaler = getattr(getattr(engine, "optimizer", None), "loss_scaler", None)
    return scaler if scaler is not None and engine.fp16_enabled() else None


def _some(keys: set[str]) -> str:
    names = [key.split("/", 1)[1] for key in sorted(keys)]
    if not names:
        return "none"
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
