"""A trainer with what callbacks may use of the real one, real checkpoints, and scripted metrics."""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_trainer.settings import TrainerSettings

from stratagem import Checkpoint
from stratagem.collectives.local import LocalCollectives


@dataclass
class FakeTrainer:
    run_dir: str | None
    callbacks: list = field(default_factory=list)
    collectives: Any = field(default_factory=lambda: LocalCollectives(torch.device("cpu")))
    max_epochs: int | None = 10
    max_steps: int | None = None
    num_train_batches: int | None = 2
    num_eval_batches: int | None = 1
    current_epoch: int = 0
    global_step: int = 0
    batch_idx: int = 0
    should_stop: bool = False
    callback_metrics: dict = field(default_factory=dict)
    loggers: list = field(default_factory=list)
    events: list = field(default_factory=list)
    settings: Any = field(default_factory=TrainerSettings)
    world_size: int = 1
    shown: tuple = ("train_loss", "val_loss")
    saves_in_background: bool = False

    def __post_init__(self):
        self.checkpoint_dir = os.path.join(self.run_dir, "checkpoints") if self.run_dir else "checkpoints"
        self.checkpointer = DirectoryCheckpointer(self.collectives, self.saves_in_background)
        self.prepared = SimpleNamespace(optimizers=())
        self.state = SimpleNamespace(schedules=[])

    @property
    def is_main(self):
        return self.collectives.rank == 0

    def progress_metrics(self):
        return {name: value for name, value in self.callback_metrics.items() if name in self.shown}

    def save_checkpoint(self, path):
        state = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        step = torch.tensor([self.global_step])
        self.checkpointer.save(path, Checkpoint({"model/step": step}, {"callbacks": state}))
        self.events.append(("saved", os.path.basename(path)))

    def when_saved(self, action):
        self.checkpointer.when_saved(action)

    def remove_checkpoint(self, path):
        self.checkpointer.remove(path)
        self.events.append(("removed", os.path.basename(path)))

    def restore(self, path):
        """Load the callbacks' states from a checkpoint."""
        reader = self.checkpointer.open(path)
        step = torch.zeros(1, dtype=torch.int64)
        reader.read({"model/step": step})
        self.global_step = int(step)
        for callback in self.callbacks:
            callback.load_state_dict(reader.state["callbacks"][callback.state_key])

    def call(self, name, *arguments):
        for callback in self.callbacks:
            getattr(callback, name)(self, None, *arguments)

    def epoch(self, epoch, train=None, val=None):
        """Run an epoch of `num_train_batches` steps that logs `train`, then a validation that logs `val`."""
        self.current_epoch = epoch
        self.call("on_train_epoch_start")
        for index in range(self.num_train_batches):
            self.batch_idx = index
            self.call("on_train_batch_start", None, index)
            self.global_step += 1
            self.callback_metrics.update(train or {})
            self.call("on_train_batch_end", None, None, index)
        if val is not None:
            self.validate(val)
        self.call("on_train_epoch_end")

    def validate(self, metrics):
        self.call("on_evaluation_start", "validate")
        self.call("on_evaluation_batch_end", None, None, 0, "validate")
        self.callback_metrics.update(metrics)
        self.call("on_evaluation_end", "validate")

    def fit(self, *epochs, first=0):
        """Run one epoch per dict of metrics: names with "val" are logged by its validation."""
        self.call("on_start", "fit")
        for epoch, metrics in enumerate(epochs, start=first):
            val = {name: value for name, value in metrics.items() if "val" in name}
            train = {name: value for name, value in metrics.items() if "val" not in name}
            self.epoch(epoch, train, val or None)
            if self.should_stop:
                break
        self.call("on_end", "fit")
