"""`BaseFinetuning` and `BackboneFinetuning`: train one part of a model first, and the rest from a later epoch on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.stage.batch_norm import BATCH_NORMS
from torch import nn
from torch.optim import Optimizer

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

Modules = Union[nn.Module, Iterable[nn.Module]]


class BaseFinetuning(Callback):
    """Freeze parts of a module before training, and unfreeze them during it.

    Override two methods. `freeze_before_training` runs on every rank before the optimizers are made.
    `finetune_function` runs at the start of each epoch, once for each optimizer. In a resumed run the optimizers get
    the parameter groups that they had at the checkpoint.
    """

    needs = ("changes_between_steps",)

    is_restored_in_evaluations = False

    def __init__(self) -> None:
        self._groups: list[list[list[str]]] = []

    def freeze_before_training(self, module: Any) -> None:
        """Freeze the modules that aren't trained at first."""
        raise NotImplementedError

    def finetune_function(self, module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the modules that are trained from `epoch` on, and add their parameters to `optimizer`."""
        raise NotImplementedError

    # What overrides call ------------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: Modules) -> list[nn.Module]:
        """Return all modules that have parameters of their own, or no children."""
        given = [modules] if isinstance(modules, nn.Module) else list(modules)
        return [
            each
            for top in given
            for each in top.modules()
            if not list(each.children()) or list(each.parameters(recurse=False))
        ]

    @staticmethod
    def filter_params(
        modules: Modules, train_bn: bool = True, requires_grad: bool = True
    ) -> Iterator[nn.Parameter]:
        """Yield the parameters with this `requires_grad`; those of batch normalization only if `train_bn`."""
        for each in BaseFinetuning.flatten_modules(modules):
            if train_bn or not isinstance(each, BATCH_NORMS):
                yield from (p for p in each.parameters(recurse=False) if p.requires_grad == requires_grad)

    @staticmethod
    def freeze(modules: Modules, train_bn: bool = True) -> None:
        """Freeze parameters. With `train_bn`, batch normalization stays trainable."""
        for each in BaseFinetuning.flatten_modules(modules):
            if isinstance(each, BATCH_NORMS) and train_bn:
                BaseFinetuning.make_trainable(each)
            else:
                BaseFinetuning.freeze_module(each)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Freeze a module's own parameters, and its running statistics where it has some."""
        if isinstance(module, BATCH_NORMS):
            module.track_running_stats = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)

    @staticmethod
    def make_trainable(modules: Modules) -> None:
        """Unfreeze parameters."""
        for each in BaseFinetuning.flatten_modules(modules):
            if isinstance(each, BATCH_NORMS):
                each.track_running_stats = True
            for parameter in each.parameters(recurse=False):
                parameter.requires_grad_(True)

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Unfreeze parameters, and add a group of those that `optimizer` doesn't have yet.

        Args:
            modules: what to unfreeze.
            optimizer: gets the new group.
            lr: the group's rate. None is the first group's rate divided by `initial_denom_lr`.
            initial_denom_lr: used if `lr` is None.
            train_bn: whether the group includes the parameters of batch normalization.
        """
        BaseFinetuning.make_trainable(modules)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        added = [p for p in BaseFinetuning.filter_params(modules, train_bn) if id(p) not in known]
        if added:
            rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
            optimizer.add_param_group({"params": added, "lr": rate, "initial_lr": rate})

    # Hooks --------------------------------------------------------------------------------------------

    def setup(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage == "fit":
            self.freeze_before_training(module)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        for index, optimizer in enumerate(trainer.prepared.optimizers):
            before = len(optimizer.param_groups)
            self.finetune_function(module, trainer.current_epoch, optimizer)
            for schedule in trainer.state.schedules:
                if schedule.optimizer == index:
                    _extend_scheduler(schedule.scheduler, optimizer.param_groups[before:])
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._groups = [
            [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
            for optimizer in trainer.prepared.optimizers
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"groups": self._groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._groups = state["groups"]

    def before_restore(
        self, module: nn.Module, optimizers: Sequence[Optimizer], state: dict[str, Any]
    ) -> None:
        parameters = dict(module.named_parameters())
        for optimizer, groups in zip(optimizers, state["groups"]):
            for names in groups[len(optimizer.param_groups) :]:
                added = [parameters[name] for name in names if name in parameters]
                for parameter in added:
                    parameter.requires_grad_(True)
                optimizer.add_param_group({"params": added})


def _extend_scheduler(scheduler: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Add later groups to a scheduler, which keeps a rate for each group."""
    for group in groups:
        if isinstance(getattr(scheduler, "base_lrs", None), list):
            scheduler.base_lrs.append(group["lr"])
        for name in ("lr_lambdas", "min_lrs"):
            kept = getattr(scheduler, name, None)
            if isinstance(kept, list) and kept:
                kept.append(kept[-1])


def _twice(epoch: int) -> float:
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Train `module.backbone` from an epoch on, at a rate that grows up to the rate of the rest.

    Args:
        unfreeze_backbone_at_epoch: the epoch, counted from 0.
        lambda_func: epoch → factor by which the backbone's rate grows in that epoch.
        backbone_initial_ratio_lr: the backbone's first rate, as a fraction of the first group's.
        backbone_initial_lr: the backbone's first rate; overrides the fraction.
        should_align: limit the backbone's rate to the first group's.
        initial_denom_lr: has no effect, because the backbone's first rate is always given.
        train_bn: train the backbone's batch normalization from the start.
        verbose: print the rates of each epoch, on rank 0.
        rounding: number of digits of the printed rates.

    Raises:
        ConfigError: the module has no `backbone`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = _twice,
        backbone_initial_ratio_lr: float = 10e-2,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align, self.initial_denom_lr = should_align, initial_denom_lr
        self.train_bn, self.verbose, self.rounding = train_bn, verbose, rounding
        self.previous_backbone_lr: float | None = None
        self._is_main = False

    def setup(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._is_main = trainer.is_main
        super().setup(trainer, module, stage)

    def freeze_before_training(self, module: Any) -> None:
        if not isinstance(getattr(module, "backbone", None), nn.Module):
            raise ConfigError(
                f"BackboneFinetuning needs a module with a `backbone`, and {type(module).__name__} has none: name "
                "it so in __init__, or derive from BaseFinetuning"
            )
        self.freeze(module.backbone, train_bn=self.train_bn)

    def finetune_function(self, module: Any, epoch: int, optimizer: Optimizer) -> None:
        rate = optimizer.param_groups[0]["lr"]
        if epoch == self.unfreeze_backbone_at_epoch:
            first = self.backbone_initial_lr
            self.previous_backbone_lr = rate * self.backbone_initial_ratio_lr if first is None else first
            self.unfreeze_and_add_param_group(
                module.backbone, optimizer, self.previous_backbone_lr, self.initial_denom_lr, self.train_bn
            )
        elif epoch > self.unfreeze_backbone_at_epoch and self.previous_backbone_lr is not None:
            next_rate = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            self.previous_backbone_lr = rate if self.should_align and next_rate > rate else next_rate
            optimizer.param_groups[-1]["lr"] = self.previous_backbone_lr
        if self.verbose and self._is_main:
            shown = [round(group["lr"], self.rounding) for group in optimizer.param_groups]
            print(f"Epoch {epoch + 1}: learning rates {shown}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.previous_backbone_lr = state["previous_backbone_lr"]
