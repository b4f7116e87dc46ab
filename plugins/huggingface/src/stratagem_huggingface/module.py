"""`HFModule`: trains a model of transformers that returns its loss."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any

import torch
from stratagem_trainer import Module
from torch import nn
from torch.optim import Optimizer

from stratagem import LossSum
from stratagem.errors import ConfigError, DataError
from stratagem_huggingface.adapters import with_adapters
from stratagem_huggingface.losses import CountedLabels
from stratagem_huggingface.models import Source
from stratagem_huggingface.optimizers import OptimizerChoice

OptimizerOf = Callable[[Iterable[nn.Parameter]], Optimizer]
ScheduleOf = Callable[[Optimizer, int], Any]


class HFModule(Module):
    """A model of transformers, with a training step, an optimizer and a schedule as transformers' Trainer has them.

    Batches are mappings, as collators of transformers return them: each is passed to the model as keywords. Logs
    "train_loss", and in evaluations "val_loss" and "test_loss". Derive from it to change a step.

    Args:
        model: a `transformers.PreTrainedModel`, or any module whose output has a `loss`. Or a text: a folder of
            `save_pretrained`, a config.json for random weights, or a name of the Hub. A model with random weights is
            constructed by `configure_model`, so that sharded strategies construct it without memory.
        optimizer: "adamw", "adafactor", "adagrad", "rmsprop" or "sgd"; or a function that takes the trained
            parameters.
        schedule: a name of `transformers.SchedulerType`, such as "linear" or "cosine"; a function that takes the
            optimizer and the number of all steps; None for a constant learning rate. Stepped after each step.
        lr: the learning rate, of an optimizer by name.
        weight_decay: of an optimizer by name; biases and norms aren't decayed.
        warmup_steps: steps in which the learning rate rises from 0, or below 1 their share; of a schedule by name.
        peft: a `peft.PeftConfig`, or its arguments with its "peft_type": only adapters are trained then.
        generate: arguments of the model's `generate`, such as {"max_new_tokens": 32}: evaluations pass what it
            generates to `generated_metrics`, and `predict` returns it instead of logits.
        weigh_losses: whether the loss of a step is the mean over the labels of all its batches, on all ranks, as with
            transformers' Trainer; else it is the mean of the batches' means. They differ where batches have unequal
            numbers of labels. Some strategies refuse weights: docs/guides/losses.md names them.

    Raises:
        ConfigError: an unknown name, or a text without a configuration.
    """

    def __init__(
        self,
        model: Any,
        optimizer: str | OptimizerOf = "adamw",
        schedule: str | ScheduleOf | None = "linear",
        lr: float = 5e-5,
        weight_decay: float = 0.0,
        warmup_steps: float = 0,
        peft: Any = None,
        generate: Mapping[str, Any] | None = None,
        weigh_losses: bool = False,
    ) -> None:
        super().__init__()
        self.choice = OptimizerChoice(optimizer, schedule, lr, weight_decay, warmup_steps)
        self.generation, self._peft = generate, peft
        self.weighs_losses = weigh_losses
        """Whether steps return a `LossSum`."""
        self._source: Source | None = None
        self.architecture = ""
        """Name of the model's class: strategies may replace the class itself."""
        self.model: Any = None
        self._labels: CountedLabels
        if isinstance(model, nn.Module):
            self._take(model)
        elif isinstance(model, (str, os.PathLike)):
            source = Source.of(os.fspath(model))
            if source.has_weights:
                self._take(source.loaded())
            else:
                self._source = source
            self.save_hyperparameters()
        else:
            raise ConfigError(
                f"HFModule got model={type(model).__name__}: pass a model of transformers, a folder, a config.json, "
                "or a name of the Hub"
            )

    @property
    def has_adapters(self) -> bool:
        """Whether the model has adapters of PEFT."""
        return hasattr(self.model, "peft_config")

    def configure_model(self) -> None:
        """Construct a model that has no weights to load."""
        if self._source is not None and self.model is None:
            self._take(self._source.drawn())

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return the model's output for a batch."""
        return self.model(**batch)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor | LossSum:
        """Return the loss that the model computes, and log it; with `weigh_losses` as a sum with its weight."""
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Log the loss, and what `generated_metrics` returns."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Log the loss, and what `generated_metrics` returns."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> Any:
        """Return the logits, or the tokens that are generated."""
        if self.generation is not None:
            return self.generated(batch)
        output = self.model(**batch)
        return getattr(output, "logits", output)

    def loss_of(self, output: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss in a model's output.

        Raises:
            DataError: the model returned none, for lack of labels.
        """
        is_mapping = isinstance(output, Mapping)
        loss: torch.Tensor | None = output.get("loss") if is_mapping else getattr(output, "loss", None)
        if loss is None:
            raise DataError(
                f"{type(self.model).__name__} returned no loss for a batch with {', '.join(map(str, batch))}: it "
                "needs labels; for language models, use DataCollatorForLanguageModeling(tokenizer, mlm=False)"
            )
        return loss

    def weight_of(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return how many labels the model's loss is the mean of; override it for a model of your own.

        Returns:
            int64 without dims, on the batch's device.

        Raises:
            ConfigError: it isn't known which labels the model's loss is the mean of.
            DataError: the batch has no tensor of labels.
        """
        return self._labels.of(batch)

    def generated(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return tokens that the model generates for a batch, without its labels; on the device, one row per sample.

        Collective where ranks share the model's parameters: all of them then go on until the last one has ended.
        """
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        strategy = self.trainer.runtime.session.run.capabilities
        if "collective_forward" in strategy.features and self.trainer.world_size > 1:
            inputs["synced_gpus"] = True
        tokens: torch.Tensor = self.model.generate(**inputs, **(self.generation or {}))
        return tokens

    def generated_metrics(self, batch: Mapping[str, Any], tokens: torch.Tensor) -> Mapping[str, Any]:
        """Return metrics of what was generated for a batch of an evaluation; override it to log some.

        Args:
            batch: with its labels.
            tokens: as `generate` returns them, one row per sample.
        """
        return {}

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        optimizer = self.choice.make_optimizer(self.model)
        steps = self.trainer.estimated_stepping_batches
        schedule = self.choice.make_schedule(optimizer, steps)
        if schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _take(self, model: nn.Module) -> None:
        self.architecture = type(model).__name__
        self.model = with_adapters(model, self._peft)
        self._labels = CountedLabels(self.model)
        self._takes_cache = "use_cache" in signature(model.forward).parameters

    def _loss(self, batch: Mapping[str, Any]) -> torch.Tensor | LossSum:
        if not self.weighs_losses:
            return self.loss_of(self._output(batch), batch)
        count = self.weight_of(batch)
        mean = self.loss_of(self._output(batch), batch)
        return LossSum(torch.where(count > 0, mean * count, 0.0), count)  # the mean of no labels is NaN

    def _output(self, batch: Mapping[str, Any]) -> Any:
        """Call the model for its loss: without a cache of keys and values, which only generation needs."""
        without = {"use_cache": False} if self._takes_cache else {}
        return self.model(**{**without, **batch})

    def _evaluate(self, batch: Mapping[str, Any], stage: str) -> None:
        if self.generation is None or "labels" in batch:
            self.log(f"{stage}_loss", self._loss(batch), prog_bar=True)
        if self.generation is not None:
            for name, value in self.generated_metrics(batch, self.generated(batch)).items():
                self.log(f"{stage}_{name}", value)
