"""`ModelPruning`: sets parameters to 0 permanently, by torch.nn.utils.prune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.local_tensors import local_of
from torch import nn
from torch.nn.utils import prune

from stratagem.errors import ConfigError
from stratagem.sdk.loops import forked_rng
from stratagem_callbacks.torch_private import pruning_mask

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

    from stratagem import CheckpointReader, Prepared

_METHODS: dict[str, type[Any]] = {
    "l1_unstructured": prune.L1Unstructured,
    "ln_structured": prune.LnStructured,
    "random_structured": prune.RandomStructured,
    "random_unstructured": prune.RandomUnstructured,
}
Decision = Union[bool, Callable[[int], bool]]


class ModelPruning(Callback):
    """Prune parameters at the end of epochs: pruned values are 0, and stay 0 while training continues.

    The masks come from torch's pruning methods. Parameters keep their names. Checkpoints have the zeros and the
    masks, so pruning is permanent. If a strategy shards parameters, masks are computed from the whole tensors.

    Args:
        pruning_fn: "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", or a class derived
            from `torch.nn.utils.prune.BasePruningMethod`.
        parameters_to_prune: pairs of a submodule (or its name) and the name of its parameter. None is the weights and
            biases of all submodules.
        parameter_names: without `parameters_to_prune`, the parameters to prune in each submodule; None is "weight"
            and "bias".
        use_global_unstructured: prune `amount` of all parameters together, instead of `amount` of each parameter.
        amount: how much to prune of what isn't pruned yet: a fraction (float), a number (int), or a function of the
            epoch that returns one of them.
        apply_pruning: whether to prune, or a function of the epoch.
        make_pruning_permanent: has no effect: pruning is always permanent.
        use_lottery_ticket_hypothesis: whether to set the remaining values to their first values after pruning, or a
            function of the epoch.
        resample_parameters: must be False.
        pruning_dim: for structured methods.
        pruning_norm: for "ln_structured".
        verbose: 1 prints the overall share of zeros after pruning, on rank 0.
        prune_on_train_epoch_end: False prunes after validations.

    Raises:
        ConfigError: a value isn't allowed, or a parameter doesn't exist.
    """

    needs = ("changes_between_steps",)
    order = 50

    def __init__(
        self,
        pruning_fn: str | type[Any],
        parameters_to_prune: Sequence[tuple[nn.Module | str, str]] | None = None,
        parameter_names: Sequence[str] | None = None,
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: Decision = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: Decision = True,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        method = _METHODS.get(pruning_fn) if isinstance(pruning_fn, str) else pruning_fn
        if not (isinstance(method, type) and issubclass(method, prune.BasePruningMethod)):
            raise ConfigError(
                f"ModelPruning got pruning_fn={pruning_fn!r}; allowed are {', '.join(_METHODS)} and classes derived "
                "from torch.nn.utils.prune.BasePruningMethod"
            )
        structured = getattr(method, "PRUNING_TYPE", "") == "structured"
        if structured and use_global_unstructured:
            raise ConfigError(
                "ModelPruning by structure prunes each parameter separately: set use_global_unstructured=False"
            )
        if structured and pruning_dim is None:
            raise ConfigError("ModelPruning by structure needs pruning_dim, the dimension that is pruned")
        if method is prune.LnStructured and pruning_norm is None:
            raise ConfigError("ModelPruning by ln_structured needs pruning_norm")
        if not callable(amount) and not (0.0 <= amount <= 1.0 if isinstance(amount, float) else amount >= 0):
            raise ConfigError(
                f"ModelPruning got amount={amount!r}; give a fraction from 0.0 to 1.0, or a number"
            )
        if resample_parameters:
            raise ConfigError("ModelPruning doesn't draw parameters again: leave resample_parameters out")
        self._method: Any = method
        self._given = parameters_to_prune
        self._kinds = tuple(parameter_names or ("weight", "bias"))
        self._global, self.amount = use_global_unstructured, amount
        self._apply, self._lottery = apply_pruning, use_lottery_ticket_hypothesis
        self._how = {} if not structured else {"dim": pruning_dim}
        if method is prune.LnStructured:
            self._how["n"] = pruning_norm
        self._verbose, self._at_epoch_end = verbose, prune_on_train_epoch_end
        self._names: list[str] = []
        self._masks: dict[str, torch.Tensor] = {}
        self._first: dict[str, torch.Tensor] = {}

    def setup(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage != "fit" or self._given is None:
            return
        places = {id(each): name for name, each in module.named_modules()}
        for owner, name in self._given:
            place = owner if isinstance(owner, str) else places.get(id(owner))
            if place is None:
                raise ConfigError(
                    "parameters_to_prune names a submodule by object, which workers have copies of: name it by its "
                    "name, as ('net.0', 'weight')"
                )
            self._names.append(f"{place}.{name}".lstrip("."))

    def on_fit_start(self, trainer: TrainerView, module: Module) -> None:
        parameters = dict(module.named_parameters())
        if self._given is None:
            self._names = [name for name in parameters if name.rpartition(".")[2] in self._kinds]
        unknown = [name for name in self._names if name not in parameters]
        if unknown or not self._names:
            raise ConfigError(
                f"ModelPruning has no parameter {', '.join(unknown) or ' or '.join(self._kinds)}; "
                f"there are {', '.join(sorted(parameters))}"
            )
        if self._lottery and not self._first:
            self._first = {name: local_of(parameters[name].detach()).clone() for name in self._names}

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._zero(module)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self._at_epoch_end:
            self._prune(trainer, module)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if not self._at_epoch_end and self._names:
            self._prune(trainer, module)

    def teardown(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._names, self._masks, self._first = [], {}, {}

    def save_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        for kind, kept in (("first", self._first), ("mask", self._masks)):
            for name, local in kept.items():
                whole = tensors[f"model/{name}"].detach().clone()
                local_of(whole).copy_(local)
                tensors[f"{self.tensor_prefix}{kind}/{name}"] = whole

    def load_tensors(self, prepared: Prepared, reader: CheckpointReader) -> None:
        model = prepared.model_tensors()
        self._first = self._loaded("first", model, reader)
        self._masks = {name: local != 0 for name, local in self._loaded("mask", model, reader).items()}

    def _loaded(
        self, kind: str, model: dict[str, torch.Tensor], reader: CheckpointReader
    ) -> dict[str, torch.Tensor]:
        """Return this rank's part of each saved tensor, by the name of the parameter whose shape it has."""
        prefix = f"{self.tensor_prefix}{kind}/"
        names = [key.removeprefix(prefix) for key in reader.tensors if key.startswith(prefix)]
        targets = {name: model[f"model/{name}"].detach().clone() for name in names}
        reader.read({prefix + name: target for name, target in targets.items()})
        return {name: local_of(target) for name, target in targets.items()}

    @torch.no_grad()
    def _prune(self, trainer: TrainerView, module: nn.Module) -> None:
        epoch = trainer.current_epoch
        if not _says(self._apply, epoch):
            return
        parameters = dict(module.named_parameters())
        wholes = [_whole(parameters[name].detach()) for name in self._names]
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        with forked_rng(trainer.device):
            torch.manual_seed(
                (trainer.config.seed or 0) + epoch
            )  # random masks must be the same on all ranks
            masks = self._masks_of(wholes, amount)
        for name, mask in zip(self._names, masks):
            self._masks[name] = _shard_like(mask, parameters[name])
        if self._first and _says(self._lottery, epoch):
            for name in self._names:
                local_of(parameters[name].detach()).copy_(self._first[name])
        self._zero(module)
        if self._verbose and trainer.is_main:
            zeros, count = sum(int((mask == 0).sum()) for mask in masks), sum(mask.numel() for mask in masks)
            print(
                f"Epoch {epoch + 1}: {zeros} of {count} parameters are pruned ({zeros / count:.1%})",
                flush=True,
            )

    def _masks_of(self, wholes: list[torch.Tensor], amount: float) -> list[torch.Tensor]:
        """Compute the masks of the values to keep. Pruned values stay pruned, and `amount` counts only the others."""
        before = [(whole != 0).to(whole.dtype) if self._masks else torch.ones_like(whole) for whole in wholes]
        if not self._global:
            method = self._method(amount, **self._how)
            return [pruning_mask(method, whole, mask) for whole, mask in zip(wholes, before) if whole.numel()]
        method = self._method(amount)
        flat = torch.cat([whole.reshape(-1) for whole in wholes])
        mask = pruning_mask(method, flat, torch.cat([each.reshape(-1) for each in before]))
        parts = torch.split(mask, [whole.numel() for whole in wholes])
        return [part.reshape(whole.shape) for part, whole in zip(parts, wholes)]

    @torch.no_grad()
    def _zero(self, module: nn.Module) -> None:
        if self._masks:
            parameters = dict(module.named_parameters())
            for name, mask in self._masks.items():
                local_of(parameters[name].detach()).mul_(mask)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_names": [], "_masks": {}, "_first": {}}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _shard_like(mask: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if not hasattr(parameter, "placements"):
        return mask
    from torch.distributed.tensor import distribute_tensor

    return local_of(distribute_tensor(mask, parameter.device_mesh, parameter.placements))  # type: ignore[attr-defined]  # a DTensor here, by the return above


def _says(decision: Decision, epoch: int) -> bool:
    return bool(decision(epoch) if callable(decision) else decision)
