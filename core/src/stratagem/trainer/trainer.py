"""`Trainer`: trains and evaluates a `Module` under any strategy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import torch

from stratagem.callbacks.base import Callback
from stratagem.config import Devices, RunConfig
from stratagem.errors import ConfigError, StratagemError
from stratagem.launch.base import Task
from stratagem.loggers.base import Logger
from stratagem.module import Module
from stratagem.plan import announce
from stratagem.renamed import renamed_selection
from stratagem.run import assemble
from stratagem.runtime import Runtime, launch
from stratagem.trainer import evaluation, resume
from stratagem.trainer.live import Live, Progress, needed_features
from stratagem.trainer.manual import ManualOptimizer
from stratagem.trainer.settings import Limit, TrainerSettings
from stratagem.trainer.stage import StageRequest, StageResult, run_stage

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.data.evaluate import EvalData
    from stratagem.data.train import TrainData
    from stratagem.prepared import Prepared
    from stratagem.trainer.fit_loop import FitLoop
    from stratagem.trainer.metrics import Metrics

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints within its run folder."""


class Trainer:
    """Trains and evaluates a `Module`: docs/guides/trainer.md.

    Args:
        accelerator: a name as "cuda", or "auto".
        devices: how many, or which: docs/guides/devices.md.
        num_nodes: machines taking part.
        strategy: a name as "ddp", or a strategy object.
        precision: a name as "bf16-mixed".
        plugins: objects with hook implementations, or names of installed extensions.
        callbacks: run at named moments, beside the default progress bar and checkpoints.
        logger: True for a metrics.csv in the run's folder, False for none, or loggers of your own.
        max_epochs: stop after so many; 1 where neither epochs nor steps are limited.
        max_steps: stop after so many optimizer steps.
        accumulate_grad_batches: micro-batches per optimizer step.
        gradient_clip_val: limit gradients before each step.
        gradient_clip_algorithm: "norm" or "value".
        val_check_interval: validate every so many batches, or after each such fraction of an epoch;
            None: at the end of epochs.
        check_val_every_n_epoch: validate at the end of every so many epochs.
        limit_train_batches, limit_val_batches, limit_test_batches, limit_predict_batches: at most so
            many batches per rank, or such a fraction of them.
        log_every_n_steps: a row of metrics every so many optimizer steps.
        enable_progress_bar: show one on rank 0.
        enable_checkpointing: keep the best and the last checkpoint.
        use_distributed_sampler: share data with a default sampler among ranks: docs/guides/data.md.
        seed: for every generator on every rank.
        run_dir: where metrics and checkpoints go; runs/<time>-<class> when None.
        further: other fields of `RunConfig`, by name.

    Raises:
        ConfigError: a setting that doesn't exist, or can't be.
    """

    def __init__(
        self,
        accelerator: str = "auto",
        devices: Devices = "auto",
        num_nodes: int = 1,
        strategy: Any = "auto",
        precision: Any = "32-true",
        plugins: Sequence[Any] = (),
        callbacks: Callback | Sequence[Callback] | None = None,
        logger: bool | Logger | Sequence[Logger] = True,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        val_check_interval: Limit = None,
        check_val_every_n_epoch: int = 1,
        limit_train_batches: Limit = None,
        limit_val_batches: Limit = None,
        limit_test_batches: Limit = None,
        limit_predict_batches: Limit = None,
        log_every_n_steps: int = 50,
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        use_distributed_sampler: bool = True,
        seed: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        **further: Any,
    ) -> None:
        settings = {field.name for field in fields(TrainerSettings)}
        self.settings = TrainerSettings(**{k: v for k, v in locals().items() if k in settings})
        renamed_selection(accelerator=accelerator, plugins=plugins, **further)
        _refuse_unknown(further)
        self._runtime = Runtime(
            strategy=strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
            seed=seed,
            run_dir=os.fspath(run_dir) if run_dir is not None else None,
            **further,
        )
        self.callbacks = _with_defaults(callbacks, enable_progress_bar, enable_checkpointing)
        self._logger = logger
        self.should_stop = False
        self._progress = Progress()
        self._latest: dict[str, float] = {}
        self.run_dir: str | None = self._runtime.config.run_dir
        self._live: _LiveParts | None = None
        self._worker: Runtime | None = None

    # Commands ---------------------------------------------------------------------------------------

    def fit(
        self,
        module: Any,
        train_dataloaders: Iterable[Any] | None = None,
        val_dataloaders: Iterable[Any] | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train `module`, in as many processes as the strategy wants.

        Args:
            module: a `Module`, or a picklable callable that makes one in each worker.
            train_dataloaders: training batches; the module's own `train_dataloader` when None.
            val_dataloaders: validation batches; the module's own when None.
            ckpt_path: continue exactly where this checkpoint was written.

        Where workers were processes of their own, the trained weights, the metrics and the callbacks'
        states are brought back into this process's objects.
        """
        self.should_stop = False
        with tempfile.TemporaryDirectory(prefix="stratagem-weights-") as folder:
            brings_back = isinstance(module, Module) and self._runtime.config.num_nodes == 1
            weights = os.path.join(folder, "weights") if brings_back else None
            request = StageRequest(
                "fit", module, train_dataloaders, val_dataloaders, _path(ckpt_path), weights
            )
            self._launch(request)
            if weights is not None and os.path.exists(weights):
                _read_weights(module, weights)

    def validate(
        self,
        module: Any,
        dataloaders: Iterable[Any] | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> dict[str, float]:
        """Run `validation_step` over each sample once, and return the metrics."""
        return self._launch(StageRequest("validate", module, dataloaders, None, _path(ckpt_path))).metrics

    def test(
        self,
        module: Any,
        dataloaders: Iterable[Any] | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> dict[str, float]:
        """Run `test_step` over each sample once, and return the metrics."""
        return self._launch(StageRequest("test", module, dataloaders, None, _path(ckpt_path))).metrics

    def predict(
        self,
        module: Any,
        dataloaders: Iterable[Any] | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Return `predict_step` of all samples, in the order of the data, on the CPU."""
        result = self._launch(StageRequest("predict", module, dataloaders, None, _path(ckpt_path)))
        return result.predictions or []

    def _launch(self, request: StageRequest) -> StageResult:
        run = assemble(self._runtime.config)
        if request.stage == "fit":
            known = request.module if isinstance(request.module, Module) else None
            run.require(needed_features(self.settings, known))
        if run.environment.global_rank == 0:
            announce(run)
        result: StageResult | None = launch(run, Task(run_stage, (self, request)))
        if result is None:  # not the node of rank 0
            return StageResult({}, {}, Progress(), None)
        self._progress, self._latest, self.run_dir = result.progress, result.latest, result.run_dir
        for callback in self.callbacks:
            if callback.state_key in result.callbacks:
                callback.load_state_dict(dict(result.callbacks[callback.state_key]))
        return result

    # Where the run is -------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Epoch, batch and step."""
        return self._live.live.progress if self._live is not None else self._progress

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; how many were finished, after a fit."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Completed optimizer steps."""
        return self.progress.step

    @property
    def batch_idx(self) -> int:
        """Micro-batches of this epoch so far."""
        return self._parts.loop.batch_idx if self._parts.loop is not None else 0

    @property
    def max_epochs(self) -> int | None:
        """The limit of epochs, where there is one."""
        return self.settings.epochs

    @property
    def max_steps(self) -> int | None:
        """The limit of optimizer steps, where there is one."""
        return self.settings.max_steps

    @property
    def num_train_batches(self) -> int | None:
        """Micro-batches per epoch and rank, where known."""
        return self._parts.loop.num_batches if self._parts.loop is not None else None

    @property
    def num_eval_batches(self) -> int | None:
        """Batches per evaluation and rank, where known."""
        parts = self._parts
        if parts.eval_data is None:
            return None
        stage = "validate" if parts.live.stage == "fit" else parts.live.stage
        return evaluation.num_batches(parts.live, parts.eval_data, stage)

    @property
    def callback_metrics(self) -> Mapping[str, float]:
        """The latest value of everything that was logged; waits for the device."""
        return self._live.live.metrics.latest() if self._live is not None else self._latest

    def progress_metrics(self) -> Mapping[str, float]:
        """The latest values that were logged with `prog_bar`; waits for the device."""
        return self.metrics.on_bar()

    # Live parts, for modules and callbacks ------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether this process is a rank of a running stage."""
        return self._worker is not None

    @property
    def runtime(self) -> Runtime:
        """The live runtime.

        Raises:
            StratagemError: no stage runs in this process.
        """
        if self._worker is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._worker

    @property
    def collectives(self) -> Collectives:
        """How the ranks talk."""
        return self.runtime.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.runtime.device

    @property
    def global_rank(self) -> int:
        """This process among all; 0 outside a stage."""
        return self._worker.rank if self._worker is not None else 0

    @property
    def local_rank(self) -> int:
        """This process among those of its node; 0 outside a stage."""
        return self._worker.local_rank if self._worker is not None else 0

    @property
    def world_size(self) -> int:
        """Number of ranks; 1 outside a stage."""
        return self._worker.world_size if self._worker is not None else 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    @property
    def metrics(self) -> Metrics:
        """Where modules log."""
        return self._parts.live.metrics

    @property
    def prepared(self) -> Prepared:
        """The prepared module and optimizers."""
        return self._parts.live.prepared

    @property
    def loggers(self) -> list[Logger]:
        """Live loggers; empty on all ranks but 0."""
        return self._parts.live.loggers

    @property
    def checkpoint_dir(self) -> str:
        """Where this run's checkpoints go."""
        if self.run_dir is None:
            raise StratagemError("only fit has a folder for checkpoints")
        return os.path.join(self.run_dir, CHECKPOINTS)

    def manual_optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """What `Module.optimizers` returns."""
        loop = self._parts.loop
        if loop is None:
            raise StratagemError("there are optimizers only during fit")
        return loop.manual[0] if len(loop.manual) == 1 else loop.manual

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `fit(ckpt_path=…)` continues exactly. Collective."""
        parts = self._parts
        resume.save(self, parts.live, parts.train_data, os.fspath(path))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint. Collective."""
        self.runtime.session.checkpointer.remove(os.fspath(path))

    # For the stage ------------------------------------------------------------------------------------

    def enter(self, runtime: Runtime, run_dir: str | None) -> None:
        """Begin a stage in this process."""
        self._worker, self.run_dir, self.should_stop = runtime, run_dir, False

    def go_live(
        self, live: Live, loop: FitLoop | None, train_data: TrainData | None, eval_data: EvalData | None
    ) -> None:
        """Show the stage's objects to modules and callbacks."""
        self._live = _LiveParts(live, loop, train_data, eval_data)

    def leave(self) -> None:
        """End the stage in this process."""
        self._live = self._worker = None

    @property
    def live_or_none(self) -> Live | None:
        """The stage's objects, if it has come that far."""
        return self._live.live if self._live is not None else None

    @property
    def _parts(self) -> _LiveParts:
        if self._live is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._live

    def make_loggers(self) -> list[Logger]:
        """The loggers of a fit, for rank 0."""
        if isinstance(self._logger, Logger):
            return [self._logger]
        if not isinstance(self._logger, bool):
            return list(self._logger)
        if not self._logger:
            return []
        from stratagem.loggers.csv import CSVLogger

        return [CSVLogger()]

    def describe(self, module: Module) -> dict[str, Any]:
        """Settings and selection, JSON-able, for loggers."""
        config = {k: v if _is_plain(v) else repr(v) for k, v in asdict(self._runtime.config).items()}
        return {"module": type(module).__qualname__, "run": config, "trainer": asdict(self.settings)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None, "_worker": None}


class _LiveParts:
    def __init__(
        self, live: Live, loop: FitLoop | None, train_data: TrainData | None, eval_data: EvalData | None
    ) -> None:
        self.live, self.loop, self.train_data, self.eval_data = live, loop, train_data, eval_data


def _with_defaults(
    callbacks: Callback | Sequence[Callback] | None, progress_bar: bool, checkpointing: bool
) -> list[Callback]:
    from stratagem.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem.callbacks.progress import ProgressBar

    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    for callback in given:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks has a {type(callback).__name__}: derive it from stratagem.Callback")
    if progress_bar and not any(isinstance(callback, ProgressBar) for callback in given):
        given.append(ProgressBar())
    if checkpointing and not any(isinstance(callback, ModelCheckpoint) for callback in given):
        given.append(ModelCheckpoint())
    return given


def _refuse_unknown(further: Mapping[str, Any]) -> None:
    allowed = {field.name for field in fields(RunConfig)} - {"extensions"}
    unknown = sorted(set(further) - allowed)
    if unknown:
        raise ConfigError(
            f"Trainer has no argument {unknown[0]!r}; beside its own it has those of RunConfig: "
            f"{', '.join(sorted(allowed))}"
        )


def _read_weights(module: Module, path: str) -> None:
    from stratagem.checkpoint.directory import DirectoryCheckpointer
    from stratagem.collectives.local import LocalCollectives

    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path)
    state = module.state_dict()
    with torch.no_grad():
        reader.read(
            {f"model/{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
        )


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, dict))
