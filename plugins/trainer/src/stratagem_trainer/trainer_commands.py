"""`TrainerCommands`: fit, validate, test and predict launch a stage, and restore what it brings back."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from stratagem_launch import Preempted

from stratagem import Task
from stratagem.sdk.loops import announce, announce_by_value, launch
from stratagem.sdk.runs import assemble
from stratagem_trainer.callbacks.selection import refuse_callbacks
from stratagem_trainer.module.module import Module
from stratagem_trainer.saving.run_dir import refuse_unusable
from stratagem_trainer.stage.build import needed_features
from stratagem_trainer.stage.collect_results import (
    SEVERAL_NODES,
    bring_back,
    destination,
    refuse_untrained,
    say_untrained,
)
from stratagem_trainer.stage.inputs import (
    best_where_there_is_one,
    chosen_checkpoint,
    last_module,
    told_apart,
)
from stratagem_trainer.stage.last_stage import Seen
from stratagem_trainer.stage.preemption import requeue
from stratagem_trainer.stage.request import StageRequest, StageResult
from stratagem_trainer.stage.run import run_stage
from stratagem_trainer.stage.seeding import latest_seed
from stratagem_trainer.view import TrainerView

PRELOAD = ("stratagem_trainer.trainer",)
"""Modules that a trainer's workers need."""


class TrainerCommands(TrainerView):
    """What a `Trainer` does; apart from what it is made with."""

    _given: Any = None
    """The module of the last fit, or what made it, for an evaluation that is given none."""

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train `model`, in as many processes as the strategy wants.

        Args:
            model: a `Module`, or a picklable callable that makes one in each worker.
            train_dataloaders: training batches: a loader, or several in a list, tuple, dict or `CombinedLoader`; the
                data module's, or the module's own `train_dataloader`, when None. A `DataModule` may be passed here.
            val_dataloaders: validation batches; the data module's, or the module's own, when None.
            datamodule: a `DataModule`, or a picklable callable that makes one in each worker.
            ckpt_path: continue exactly where this checkpoint was written; "last" is the last one of the fit before,
                "auto" the newest in `run_dir`, where there is one.

        A fit that a signal, `time_limit` or its Slurm job's end stops has saved, and raises `SystemExit(75)`.

        Where workers were separate processes, the trained weights, the metrics and the callbacks'
        states are brought back into this process's objects: all that is in `model.state_dict()`, with the
        dtypes that training left, and which parameters require gradients. Where that can't be, as after a run on
        several nodes, there is a warning, and going on with the module needs a `ckpt_path`.
        """
        self._given = model
        with destination(model) as where:
            loader, datamodule = told_apart("fit", train_dataloaders, val_dataloaders, datamodule)
            path = chosen_checkpoint(self, "fit", ckpt_path)
            result = self._launch(
                StageRequest("fit", model, loader, val_dataloaders, datamodule, path, where)
            )
            reason = result.not_brought_back
            if where is not None and reason is None and not result.in_launching_process:
                reason = bring_back(model, where)
        if where is not None and reason is not None:
            say_untrained(model, reason)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run `validation_step` over each sample once.

        Args:
            model: a `Module`, or a picklable callable; when None, that of the last fit, with the best checkpoint's
                weights where that fit kept any and no `ckpt_path` is given.
            dataloaders: as for `fit`; several are read one after the other, but for a `CombinedLoader` of another
                mode.
            ckpt_path: of a checkpoint's weights, or "best" or "last" of the last fit.
            verbose: taken for the sake of other trainers' programs: this one prints nothing.
            datamodule: as for `fit`.

        Returns:
            The metrics, one dict for each loader.
        """
        return self._evaluate("validate", model, dataloaders, ckpt_path, datamodule).metrics

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run `test_step` over each sample once, and return the metrics, one dict for each loader; see `validate`."""
        return self._evaluate("test", model, dataloaders, ckpt_path, datamodule).metrics

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Return `predict_step` of all samples, in the order of the data, on the CPU.

        Args:
            model: as for `validate`.
            dataloaders: as for `validate`.
            datamodule: as for `fit`.
            return_predictions: False returns none, where callbacks write them; nothing is gathered then.
            ckpt_path: as for `validate`.

        Returns:
            A list of batches' predictions; of several loaders, a list of them for each.

        Raises:
            SystemExit: 75; the run was asked to stop. It is a `stratagem_launch.Preempted` whose `predictions` are
                those of the first batches, in a list for each loader.
        """
        returns = return_predictions is not False
        return self._evaluate("predict", model, dataloaders, ckpt_path, datamodule, returns).predictions or []

    def _evaluate(
        self, stage: str, model: Any, loaders: Any, ckpt_path: Any, datamodule: Any, returns: bool = True
    ) -> StageResult:
        loader, datamodule = told_apart(stage, loaders, None, datamodule)
        if model is None:
            model = last_module(self._given, stage)
            ckpt_path = best_where_there_is_one(self, ckpt_path)
        path = chosen_checkpoint(self, stage, ckpt_path)
        return self._launch(
            StageRequest(stage, model, loader, None, datamodule, path, return_predictions=returns)
        )

    def _launch(self, request: StageRequest) -> StageResult:
        if request.ckpt_path is None:
            refuse_untrained(request.module, request.stage)
        for callback in self.callbacks:
            callback.before_launch(self, request.module, request.loader, request.stage)
        run = assemble(self.config)
        self.given_seed = latest_seed()
        if request.stage == "fit":
            known = request.module if isinstance(request.module, Module) else None
            run.require(needed_features(self.settings, known))
            refuse_callbacks(run, self.callbacks)
            if run.environment.global_rank == 0:
                root = self.settings.default_root_dir
                refuse_unusable(self.config.run_dir, root, is_only_node=self.config.num_nodes in (1, "1"))
        if run.environment.global_rank == 0:
            announce(run)
        self._seen = replace(self._seen, stage=request.stage, status="interrupted")
        request = replace(request, began=time.time())
        task = Task(run_stage, (self, request), preload=PRELOAD, notice=announce_by_value)
        try:
            result: StageResult | None = launch(run, task)
        except Preempted as preempted:
            requeue(preempted, self.settings)
            raise
        self.model, self.ckpt_path = request.module, request.ckpt_path
        self.datamodule = None if callable(request.datamodule) else request.datamodule
        if result is None:  # not the node of rank 0
            return StageResult([], Seen(), False, not_brought_back=SEVERAL_NODES)
        self._seen, self.run_dir = result.seen, result.seen.run_dir
        for callback in self.callbacks:
            if callback.state_key in result.callbacks:
                callback.load_state_dict(dict(result.callbacks[callback.state_key]))
        if not isinstance(self.given_loggers, bool) and not result.in_launching_process:
            for logger, state in zip(self.given_loggers, result.loggers):
                logger.load_state_dict(state)
        return result
