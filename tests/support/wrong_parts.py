"""Accelerators, precisions, checkpointers, environments and launchers that do one thing wrong each."""

from __future__ import annotations

import copy
import glob
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Any, ClassVar

import torch
from planting import FAULTS, Fault
from stratagem_checkpoint.directory import DirectoryCheckpointer
from stratagem_clusters import Env
from stratagem_cpu import CpuAccelerator
from stratagem_launch import ElasticLauncher

from stratagem import Availability, WorkerError
from stratagem.errors import CheckpointError, UsageError
from stratagem.launchers.base import Task
from stratagem.precision.full import FullPrecision
from stratagem.precision.mixed import MixedPrecision, ScaledPrecision
from stratagem.precision.true16 import TruePrecision

AREAS = {"checkpoint": "checkpoint", "precision": "precision"}
VARIABLES = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29501",
}


def caught_by(kind: str, check: str, words: str, **subject: Any) -> Any:
    """Plant a fault in a part: a class, with further fields of its subject."""

    def register(cls: Any) -> Any:
        usual: dict[str, Any] = {}
        if kind == "precision":
            usual = {"asked_as": "32-true"}
        elif kind == "environment":
            usual = {"examples": ((VARIABLES, {"global_rank": 3}),)}
        given, area = {**usual, **subject}, AREAS.get(kind, "others")
        FAULTS.append(Fault(area, cls.__name__, cls, check, words, kind, given))
        return cls

    return register


# Accelerators -------------------------------------------------------------------------------------------


@caught_by("accelerator", "made_without_arguments", "no backend")
class Speechless(CpuAccelerator):
    backend = ""


@caught_by("accelerator", "availability", "device_count() 0")
class Boasts(CpuAccelerator):
    def availability(self) -> Availability:
        return Availability(True, "many devices")

    def device_count(self) -> int:
        return 0


@caught_by("accelerator", "indices", "is refused")
class RefusesItself(CpuAccelerator):
    def check_index(self, index: int) -> str | None:
        return "never"


@caught_by("accelerator", "computes", "names must have their unit")
class Unitless(CpuAccelerator):
    def memory(self, device: torch.device) -> dict[str, int]:
        return {"used": 3}


@caught_by("accelerator", "precision_refusals", "without a reason")
class RefusesWithoutReason(CpuAccelerator):
    def refuse_precision(self, precision: str) -> str | None:
        return "no" if precision == "bf16-true" else None


# Precisions ---------------------------------------------------------------------------------------------


@caught_by("precision", "named", "it is called 'other'")
class Misnamed(FullPrecision):
    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name, device)
        self.name = "other"


class Double(FullPrecision):
    """Float64 throughout."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__("64-true", device)
        self.name = name


@caught_by("precision", "converts_modules", "running_mean has torch.float32")
class ForgetsBuffers(Double):
    def convert_module(self, module: Any) -> Any:
        for parameter in module.parameters():
            parameter.data = parameter.data.double()
        return module


class Layer(torch.nn.Linear):
    """Computes in another way."""


@caught_by("precision", "returns_layers", "still has the class Layer after the run")
class KeepsLayers(FullPrecision):
    def convert_layers(self, module: Any) -> Any:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.__class__ = Layer
        return lambda: None


@caught_by("precision", "returns_layers", "is another module")
class SwapsLayers(FullPrecision):
    def convert_layers(self, module: Any) -> Any:
        for name, layer in module.named_children():
            if type(layer) is torch.nn.Linear:
                setattr(module, name, copy.copy(layer))
        return lambda: None


@caught_by("precision", "converts_batches", "torch.float64, torch.float64")
class ConvertsIntegers(Double):
    def convert_input(self, batch: Any) -> Any:
        converted = super().convert_input(batch)
        if isinstance(batch, dict):
            converted["x"] = [converted["x"][0], (converted["x"][1][0].double(), "text")]
        return converted


@caught_by("precision", "contexts_end", "torch.float32, not torch.bfloat16", asked_as="bf16-mixed")
class EntersOnce(MixedPrecision):
    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name, device)
        self.entered = False

    def autocast(self) -> Any:
        from contextlib import nullcontext

        self.entered, before = True, self.entered
        return nullcontext() if before else super().autocast()


@caught_by("precision", "contexts_end", "returns the same object twice", asked_as="bf16-mixed")
class ReusesOneContext(MixedPrecision):
    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name, device)
        self.context = super().autocast()

    def autocast(self) -> Any:
        return self.context


@caught_by("precision", "true_gradients", "after unscale", asked_as="16-mixed")
class UnscalesTwice(ScaledPrecision):
    def unscale(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 65536.0


@caught_by("precision", "skips_overflows", "step returns True", asked_as="16-mixed")
class StepsAnyway(ScaledPrecision):
    def step(self, optimizer: Any, closure: Any = None) -> bool:
        super().step(optimizer)
        return True


@caught_by("precision", "trains", "from those in 32 bits")
class RoundsParameters(FullPrecision):
    def step(self, optimizer: Any, closure: Any = None) -> bool:
        optimizer.step()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.copy_((parameter * 2).round() / 2)
        return True


@caught_by("precision", "state", "is restored as", asked_as="16-mixed")
class ForgetsItsState(ScaledPrecision):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@caught_by("precision", "computes_as_named", "'bf16-mixed' means torch.bfloat16", asked_as="bf16-mixed")
class ComputesInAnother(MixedPrecision):
    compute_dtype = torch.float16


@caught_by("precision", "keeps_weights", "a step rounds weights", asked_as="bf16-mixed")
class RoundsMixedWeights(MixedPrecision):
    def step(self, optimizer: Any, closure: Any = None) -> bool:
        optimizer.step()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.bfloat16().float()
        return True


class RoundsByChance(TruePrecision):
    """Rounds each step up or down by chance, from a generator of its own."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name, device)
        self.generator = torch.Generator().manual_seed(self.seed())

    def seed(self) -> int:
        return 3

    def step(self, optimizer: Any, closure: Any = None) -> bool:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters]
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad, parameter.data = None, parameter.data.float()
            parameter.grad = gradient.float()
        optimizer.step()
        for parameter in parameters:
            noise = torch.randint(2**16, parameter.shape, generator=self.generator, dtype=torch.int32)
            rounded = (parameter.data.view(torch.int32) + noise) & ~0xFFFF
            parameter.grad, parameter.data = None, rounded.view(torch.float32).bfloat16()
            momentum = optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                # Torch gives a state that is loaded the dtype of its parameter.
                optimizer.state[parameter]["momentum_buffer"] = momentum.bfloat16()
        return True


@caught_by("precision", "resumes", "resumed after step 1", asked_as="bf16-true")
class ForgetsItsGenerator(RoundsByChance):
    pass


@caught_by("precision", "same_on_all_ranks", "have different weights", asked_as="bf16-true")
class RoundsByRank(RoundsByChance):
    def seed(self) -> int:
        return int(os.environ.get("RANK", 0))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


# Checkpointers ------------------------------------------------------------------------------------------


class ChangesTensors(DirectoryCheckpointer):
    """Saves what `changed` returns of each tensor."""

    def save(self, path: str, checkpoint: Any) -> None:
        tensors = {key: self.changed(value) for key, value in checkpoint.tensors.items()}
        super().save(path, type(checkpoint)(tensors, checkpoint.state, checkpoint.rank_state))

    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@caught_by("checkpoint", "round_trip", "model/transposed is read as")
class ReadsRows(ChangesTensors):
    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_contiguous() else tensor.T.contiguous().reshape(tensor.shape)


class LosesBits(ChangesTensors):
    """Saves a dtype by way of another one."""

    lost: torch.dtype
    by_way_of: torch.dtype

    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.by_way_of).to(self.lost) if tensor.dtype == self.lost else tensor


@caught_by("checkpoint", "round_trip", "model/double is read as")
class RoundsDoubles(LosesBits):
    lost, by_way_of = torch.float64, torch.float32


@caught_by("checkpoint", "round_trip", "model/float16 is read as")
class RoundsHalves(LosesBits):
    lost, by_way_of = torch.float16, torch.bfloat16


@caught_by("checkpoint", "round_trip", "model/complex128 is read as")
class RoundsComplex(LosesBits):
    lost, by_way_of = torch.complex128, torch.complex64


@caught_by("checkpoint", "round_trip", "model/int8 is read as")
class LosesSigns(ChangesTensors):
    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(min=0) if tensor.dtype == torch.int8 else tensor


@caught_by("checkpoint", "round_trip", "model/uint8 is read as")
class TakesBytesForSigned(ChangesTensors):
    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(max=127) if tensor.dtype == torch.uint8 else tensor


@caught_by("checkpoint", "round_trip", "model/float8_e5m2 is read as")
class RoundsEightBits(ChangesTensors):
    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float().round().to(tensor.dtype) if tensor.dtype == torch.float8_e5m2 else tensor


@caught_by("checkpoint", "replaces", "the first's")
class KeepsTheFirst(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        if not os.path.exists(path):
            super().save(path, checkpoint)


class SavesLater(DirectoryCheckpointer):
    """Writes when it is waited for."""

    later: Any = None

    def save(self, path: str, checkpoint: Any) -> None:
        self.wait()
        self.later = (path, checkpoint)

    def open(self, path: str, verify: bool = True) -> Any:
        self.wait()
        return super().open(path, verify)

    def wait(self) -> None:
        later, self.later = self.later, None
        if later is not None:
            super().save(*later)


@caught_by("checkpoint", "snapshot", "was changed after save, and the change was saved")
class TakesNoSnapshot(SavesLater):
    pass


@caught_by("checkpoint", "turn", "before the new one is complete")
class DeletesAtOnce(SavesLater):
    pass


@caught_by("checkpoint", "failure", "gets no error when a save fails")
class SwallowsFailures(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        with suppress(CheckpointError):
            super().save(path, checkpoint)


@caught_by("checkpoint", "refuses", "a path without a checkpoint")
class RaisesPlainErrors(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        return super().open(path, verify)


@caught_by("checkpoint", "refuses", "filled some of its targets")
class FillsHalf(DirectoryCheckpointer):
    """Fills one target after the other, until one is refused."""

    def open(self, path: str, verify: bool = True) -> Any:
        reader = super().open(path, verify)
        read = reader.read

        def read_each(targets: Any) -> None:
            for key, value in targets.items():
                read({key: value})

        reader.read = read_each
        return reader


@caught_by("checkpoint", "refuses_damage", "without a CheckpointError")
class PutsUpWithDamage(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        try:
            return super().open(path, verify)
        except UsageError:
            return Empty()


@caught_by("checkpoint", "refuses_damage", "changed in its last bit")
class ComparesNothing(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        return super().open(path, verify=False)


class Empty:
    """Reads nothing, and says nothing."""

    def read(self, targets: Any) -> None:
        pass


@caught_by("checkpoint", "other_world_size", "rank 1's state is read as None")
class KeepsRankZero(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        super().save(path, checkpoint)

    def open(self, path: str, verify: bool = True) -> Any:
        reader = super().open(path, verify)
        here = torch.distributed.get_world_size()
        original = reader.rank_state
        reader.rank_state = lambda rank: original(rank) if rank < here else None
        return reader


@caught_by("checkpoint", "neighbours", "has also removed 'step=10'")
class RemovesByPrefix(DirectoryCheckpointer):
    def remove(self, path: str) -> None:
        for found in glob.glob(f"{path}*"):
            super().remove(found)


@caught_by("checkpoint", "reader_between_saves", "mixes the tensors")
class ReadsLater(DirectoryCheckpointer):
    def open(self, path: str, verify: bool = True) -> Any:
        reader, again = super().open(path, verify), super().open
        reader.read = lambda targets: type(reader).read(again(path, verify), targets)
        return reader


@caught_by("checkpoint", "lets_go", "open files aren't freed")
class LeavesFilesOpen(DirectoryCheckpointer):
    left: ClassVar[list[int]] = []

    def open(self, path: str, verify: bool = True) -> Any:
        self.left.append(os.open(os.path.dirname(path), os.O_RDONLY))
        return super().open(path, verify)


@caught_by("checkpoint", "lets_go", "threads aren't freed")
class LeavesThreads(DirectoryCheckpointer):
    def save(self, path: str, checkpoint: Any) -> None:
        super().save(path, checkpoint)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@caught_by("checkpoint", "lets_go", "tensors aren't freed")
class KeepsTensors(DirectoryCheckpointer):
    kept: ClassVar[list[Any]] = []

    def save(self, path: str, checkpoint: Any) -> None:
        super().save(path, checkpoint)
        self.kept.append(checkpoint.tensors)


@caught_by("checkpoint", "lets_go", "tensors and readers aren't freed")
class KeepsReaders(DirectoryCheckpointer):
    kept: ClassVar[list[Any]] = []

    def open(self, path: str, verify: bool = True) -> Any:
        self.kept.append(super().open(path, verify))
        return self.kept[-1]


@caught_by("checkpoint", "killed_while_replacing", "leaves no checkpoint")
class RenamesTwice(DirectoryCheckpointer):
    """Moves the old one away before it puts the new one in its place."""

    def save(self, path: str, checkpoint: Any) -> None:
        super().save(f"{path}.new", checkpoint)
        if os.path.exists(path):
            os.rename(path, f"{path}.old")
        os.rename(f"{path}.new", path)
        super().remove(f"{path}.old")


# Environments -------------------------------------------------------------------------------------------


@caught_by("environment", "detected", "without any variables")
class TakesEverything(Env):
    @classmethod
    def detect(cls, environ: Any) -> str | None:
        return "why not"


@caught_by("environment", "place", "global_rank is 1, not 3")
class TakesTheLocalRank(Env):
    @property
    def global_rank(self) -> int:
        return self.local_rank


@caught_by("environment", "snapshot", "change when the variables do")
class LooksAgain(Env):
    def __init__(self, environ: Any) -> None:
        super().__init__(environ)
        self.environ = environ

    @property
    def main_address(self) -> str:
        return self.environ.get("MASTER_ADDR", "elsewhere")


@caught_by("environment", "refuses_nonsense", "ValueError")
class RaisesValueErrors(Env):
    def __init__(self, environ: Any) -> None:
        int(environ.get("RANK", "0"))
        super().__init__(environ)


# Launchers ----------------------------------------------------------------------------------------------


@caught_by("launcher", "runs_every_rank", "is returned as None")
class LosesTheValue(ElasticLauncher):
    def launch(self, task: Task) -> Any:
        super().launch(task)


@caught_by("launcher", "tells_errors", "rank 0 is named")
class BlamesRankZero(ElasticLauncher):
    def launch(self, task: Task) -> Any:
        try:
            return super().launch(task)
        except WorkerError as error:
            error.rank = 0
            raise


@caught_by("launcher", "notices_the_dead", "is reported as None")
class TakesDeathForSuccess(ElasticLauncher):
    def launch(self, task: Task) -> Any:
        try:
            return super().launch(task)
        except WorkerError as error:
            if signal.SIGKILL.name in str(error):
                return None
            raise


@caught_by("launcher", "keeps_data_apart", "a rank reads 1.0")
class SharesWrites(ElasticLauncher):
    def launch(self, task: Task) -> Any:
        for arg in task.args:
            if isinstance(arg, list):
                arg[0].share_memory_()
        return super().launch(task)


@caught_by("launcher", "listens_for_itself", "sockets listen on 00000000:")
class ListensForAll(ElasticLauncher):
    def launch(self, task: Task) -> Any:
        with socket.create_server(("0.0.0.0", 0)):
            return super().launch(task)
