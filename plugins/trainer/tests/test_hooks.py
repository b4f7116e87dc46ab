"""Every hook is called, in the documented order, on every rank."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.module.module import Module
from stratagem_trainer.stage.hooks import OF_CALLBACKS, OF_MODULES, TABLE
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError

TRANSFER = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]
BATCH = [*TRANSFER, "on_train_batch_start", "on_before_backward", "on_after_backward"]
STEP = [
    "optimizer_step",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "lr_scheduler_step",
]
ANY_BATCH_END = "on_evaluation_batch_end"


OF_STEPS = ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")


class Recorder(stratagem.Callback):
    """Notes every hook of its own."""

    def __init__(self, calls: list[str]) -> None:
        for name in OF_CALLBACKS:
            setattr(self, name, lambda *args, name=name: calls.append(f"callback {name}"))


class Recorded(stratagem.Module):
    """Notes every hook of its own, and brings a callback that does; leaves its notes in a file per rank."""

    def __init__(self, folder: str, automatic: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = automatic
        self.layer = nn.Linear(2, 1)
        self.calls: list[str] = []
        self.folder = folder
        for name in OF_MODULES:
            if automatic or name not in OF_STEPS:
                setattr(self, name, partial(self._note, name))

    def _note(self, name: str, *args: Any) -> Any:
        self.calls.append(f"module {name}")
        if name == "teardown":
            Path(self.folder, f"{self.trainer.global_rank}.json").write_text(json.dumps(self.calls))
        return getattr(stratagem.Module, name)(self, *args)

    def configure_callbacks(self) -> Any:
        return [Recorder(self.calls)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.layer(batch).mean())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if not self.automatic_optimization:
            return optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def loader(num_batches: int) -> Any:
    return DataLoader(torch.ones(num_batches * 2, 2), batch_size=2)


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    return stratagem.Trainer(run_dir=folder / "run", **{"accelerator": "cpu", "devices": 1, **quiet, **how})


def evaluation(name: str, num_batches: int) -> list[str]:
    one = [*TRANSFER, f"on_{name}_batch_start", f"on_{name}_batch_end", ANY_BATCH_END]
    begin = ["on_evaluation_start", f"on_{name}_start", f"on_{name}_epoch_start"]
    return [*begin, *one * num_batches, f"on_{name}_epoch_end", f"on_{name}_end", "on_evaluation_end"]


def fit(epochs: int, steps: int) -> list[str]:
    """With two batches per step, and two of a validation."""
    step = [*BATCH, "on_train_batch_end", *BATCH, *STEP, "on_train_batch_end"]
    epoch = ["on_train_epoch_start", *step * steps, *evaluation("validation", 2), "on_train_epoch_end"]
    begin = ["prepare_data", "setup", "on_start", "on_fit_start", "on_train_start"]
    return [*begin, *epoch * epochs, "on_train_end", "on_fit_end", "on_end", "teardown"]


def by_owner(names: list[str], rank: int = 0) -> list[str]:
    """Who is called for each: the callback, then the module; at an epoch's end the other way round."""
    seen: list[str] = []
    for name in names:
        if name == "prepare_data" and rank > 0:
            continue
        owners = [("callback", OF_CALLBACKS), ("module", OF_MODULES)]
        if name == "on_train_epoch_end":
            owners.reverse()
        seen += [f"{owner} {name}" for owner, known in owners if name in known]
    return seen


def called(folder: Path, rank: int = 0) -> list[str]:
    calls: list[str] = json.loads((folder / f"{rank}.json").read_text())
    return calls


def test_hooks_of_a_fit_come_in_order(tmp_path: Path) -> None:
    settings = {"max_epochs": 2, "accumulate_grad_batches": 2}
    trainer(tmp_path, **settings).fit(Recorded(str(tmp_path)), loader(4), loader(2))
    assert called(tmp_path) == by_owner(fit(epochs=2, steps=2))


def test_every_rank_calls_them_and_one_per_node_prepares_data(tmp_path: Path) -> None:
    several = trainer(tmp_path, strategy="ddp", devices=2, max_epochs=1, accumulate_grad_batches=2)
    several.fit(partial(Recorded, str(tmp_path)), loader(8), loader(4))
    for rank in (0, 1):
        assert called(tmp_path, rank) == by_owner(fit(epochs=1, steps=2), rank)


@pytest.mark.parametrize(
    ("stage", "name"), [("validate", "validation"), ("test", "test"), ("predict", "predict")]
)
def test_hooks_of_an_evaluation_come_in_order(tmp_path: Path, stage: str, name: str) -> None:
    getattr(trainer(tmp_path), stage)(Recorded(str(tmp_path)), loader(3))
    begin, end = ["prepare_data", "setup", "on_start"], ["on_end", "teardown"]
    assert called(tmp_path) == by_owner([*begin, *evaluation(name, 3), *end])


def test_a_checkpoints_hooks_of_the_module(tmp_path: Path) -> None:
    class Keeps(Recorded):
        def __init__(self) -> None:
            super().__init__(str(tmp_path))
            self.on_save_checkpoint = lambda state: state.update(mine=self.kept)
            self.on_load_checkpoint = lambda state: setattr(self, "kept", state["mine"])
            self.kept = 0

    module, path = Keeps(), str(tmp_path / "checkpoint")
    module.kept = 7
    saving = stratagem.Callback()
    saving.on_fit_end = lambda trainer, module: trainer.save_checkpoint(path)
    trainer(tmp_path, max_epochs=1, callbacks=saving).fit(module, loader(2))
    other = Keeps()
    trainer(tmp_path, max_epochs=2).fit(other, loader(2), ckpt_path=path)
    assert other.kept == 7


def test_minus_one_ends_the_epoch(tmp_path: Path) -> None:
    class Half(Recorded):
        def __init__(self) -> None:
            super().__init__(str(tmp_path))
            self.on_train_batch_start = lambda batch, batch_idx: -1 if batch_idx == 2 else None

    run = trainer(tmp_path, max_epochs=3)
    run.fit(Half(), loader(4))
    assert (run.global_step, run.current_epoch) == (6, 3)
    assert called(tmp_path).count("module on_train_epoch_end") == 3
    with pytest.raises(
        ConfigError, match="for batch 2, whose gradients are added to those of batch 0: return it"
    ):
        trainer(tmp_path, max_epochs=1, accumulate_grad_batches=3).fit(Half(), loader(4))


def test_gradients_before_a_step_are_those_of_the_loss(tmp_path: Path) -> None:
    norms: list[float] = []

    class Watched(Recorded):
        def __init__(self) -> None:
            super().__init__(str(tmp_path))
            torch.nn.init.constant_(self.layer.weight, 1.0)
            torch.nn.init.constant_(self.layer.bias, 0.0)
            self.on_before_backward = lambda loss: norms.append(loss.item())
            self.on_before_optimizer_step = lambda optimizer: norms.append(
                float(optimizer.param_groups[0]["params"][1].grad)
            )

    trainer(tmp_path, max_steps=1).fit(Watched(), loader(1))
    assert norms == [4.0, 4.0]  # (1 + 1)², and its derivative by the bias


def test_manual_optimization_calls_the_hooks_around_what_it_does(tmp_path: Path) -> None:
    class Manual(Recorded):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    trainer(tmp_path, max_steps=1).fit(Manual(str(tmp_path), automatic=False), loader(1))
    names = ["on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"]
    names += ["on_before_optimizer_step", "on_train_batch_end"]
    calls = called(tmp_path)
    first, last = calls.index("callback on_train_batch_start"), calls.index("module on_train_batch_end")
    assert calls[first : last + 1] == by_owner(names)


class Scaled(Recorded):
    """In 16-mixed, where the loss is scaled; notes the gradient that a hook sees before the step."""

    def __init__(self, folder: str, automatic: bool) -> None:
        super().__init__(folder, automatic)
        torch.nn.init.constant_(self.layer.weight, 1.0)
        torch.nn.init.constant_(self.layer.bias, 0.0)
        self.seen: list[float] = []
        self.on_before_optimizer_step = lambda optimizer: self.seen.append(
            optimizer.param_groups[0]["params"][1].grad.item()
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.automatic_optimization:
            return loss
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return None


@pytest.mark.parametrize("automatic", [True, False])
def test_a_hook_sees_gradients_without_the_precisions_scale(tmp_path: Path, automatic: bool) -> None:
    module = Scaled(str(tmp_path), automatic)
    trainer(tmp_path, precision="16-mixed", max_steps=1).fit(module, loader(1))
    # Before the one step that was applied; the first scales overflow.
    assert module.seen[-1] == 4.0
    assert math.inf in module.seen


def test_callbacks_of_one_key_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    class Brings(Recorded):
        def configure_callbacks(self) -> Any:
            return [Keeps(), Keeps()]

    with pytest.raises(ConfigError, match="two callbacks keep their state under 'Keeps'"):
        trainer(tmp_path, max_epochs=1).fit(Brings(str(tmp_path)), loader(2))


class Keeps(stratagem.Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": 1}


def test_a_modules_callbacks_go_before_those_of_their_class(tmp_path: Path) -> None:
    given = Recorder([])
    run = trainer(tmp_path, max_epochs=1, callbacks=given)
    module = Recorded(str(tmp_path))
    run.fit(module, loader(2))
    assert given not in run.callbacks
    module.configure_callbacks = lambda: [3]  # type: ignore[method-assign]  # returns what isn't a callback
    with pytest.raises(ConfigError, match="configure_callbacks returned a int: return callbacks"):
        run.fit(module, loader(2))


def test_the_table_names_what_the_classes_have() -> None:
    def own(base: type) -> set[str]:
        names = {name for cls in base.__mro__ for name in vars(cls) if cls.__module__.startswith("stratagem")}
        others = {
            "setup",
            "teardown",
            "prepare_data",
            "transfer_batch_to_device",
            "lr_scheduler_step",
            *OF_STEPS,
        }
        return {name for name in names if name.startswith("on_")} | (others & names)

    assert own(Callback) == set(OF_CALLBACKS)
    assert own(Module) == set(OF_MODULES)
    for hook in TABLE:
        for base, owners in ((Callback, "module"), (Module, "callback")):
            if hook.owners != owners:
                code = getattr(base, hook.name).__code__
                taken = code.co_varnames[1 : code.co_argcount]
                assert taken == (*(("trainer", "module") if base is Callback else ()), *hook.arguments)
