"""Classes that Lightning has had over its versions are importable from their places, and mean a choice here."""

from __future__ import annotations

import inspect
import pickle
import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import stratagem_lightning as L
import torch
from stratagem_lightning.pytorch import plugins
from stratagem_lightning.pytorch.accelerators import AcceleratorRegistry
from stratagem_lightning.pytorch.plugins import environments
from stratagem_lightning.pytorch.strategies import DDPSpawnStrategy, DDPStrategy, StrategyRegistry

from stratagem.errors import ConfigError, StratagemError

QUIET: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "logger": False}
STRATEGIES = {
    "pytorch.strategies": (
        "BaguaStrategy DDP2Strategy DDPFullyShardedStrategy DDPShardedStrategy DDPSpawnShardedStrategy "
        "DDPSpawnStrategy DDPStrategy DataParallelStrategy DeepSpeedStrategy FSDPStrategy HPUParallelStrategy "
        "HorovodStrategy IPUStrategy ModelParallelStrategy ParallelStrategy SingleDeviceStrategy "
        "SingleDeviceXLAStrategy SingleHPUStrategy SingleTPUStrategy Strategy TPUSpawnStrategy XLAFSDPStrategy "
        "XLAStrategy"
    ),
    "pytorch.strategies.ddp_spawn": "DDPSpawnStrategy",
    "pytorch.strategies.xla": "XLAStrategy",
    "fabric.strategies.xla_fsdp": "XLAFSDPStrategy",
    "fabric.strategies.dp": "DataParallelStrategy",
    "pytorch.plugins": "DDPPlugin DeepSpeedPlugin DDPShardedPlugin HorovodPlugin",
    "pytorch.plugins.training_type.ddp": "DDPPlugin",
    "pytorch.accelerators": "GPUAccelerator HPUAccelerator IPUAccelerator TPUAccelerator CPUAccelerator",
}


@pytest.mark.parametrize("module", STRATEGIES)
def test_classes_are_in_their_places(module: str) -> None:
    here = import_module(f"stratagem_lightning.{module}")
    for name in STRATEGIES[module].split():
        kind = getattr(here, name)
        assert isinstance(kind, type), name
        assert not inspect.isabstract(kind) or name == "Accelerator"


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("pytorch.strategies", "HivemindStrategy", "diloco"),
        ("pytorch.strategies", "ColossalAIStrategy", "Colossal-AI's engine isn't offered"),
        ("pytorch.strategies.launchers", "", "start_method of a strategy"),
        ("pytorch.plugins", "BitsandbytesPrecision", "weights in 4 or 8 bits"),
        ("fabric.plugins.precision", "TransformerEnginePrecision", "transformer_engine's own layers"),
        ("pytorch.plugins", "RPCSequentialPlugin", "FairScalePipeStrategy"),
        ("fabric.utilities.throughput", "", "ThroughputMonitor of lightning.pytorch.callbacks"),
        ("pytorch.demos", "", "aren't shipped"),
    ],
)
def test_what_isnt_here_says_why_when_it_is_imported(module: str, name: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        getattr(import_module(f"stratagem_lightning.{module}"), name or "__doc__")


def test_plugins_of_the_trainer_are_its_arguments() -> None:
    chosen = L.Trainer(
        plugins=[
            plugins.MixedPrecision("bf16-mixed", "cpu"),
            environments.SLURMEnvironment(auto_requeue=False, requeue_signal=signal.SIGUSR2),
            plugins.AsyncCheckpointIO(),
            plugins.TorchSyncBatchNorm(),
        ],
        **QUIET,
    )
    assert (chosen.precision, chosen.config.environment) == ("bf16-mixed", "slurm")
    assert chosen.config.checkpoint_options == {"async": True}
    settings = chosen.settings
    assert (settings.requeue, settings.stop_signals, settings.sync_batchnorm) == (False, "SIGUSR2", True)
    assert L.Trainer(plugins=plugins.DoublePrecision(), **QUIET).precision == "64-true"
    assert L.Trainer(plugins=plugins.TorchCheckpointIO(), **QUIET).precision == "32-true"
    fabric = L.Fabric(
        accelerator="cpu",
        devices=1,
        plugins=[plugins.HalfPrecision("bf16-true"), environments.SLURMEnvironment()],
    )
    assert (fabric.config.precision, fabric.config.environment) == ("bf16-true", "slurm")
    strategy = DDPStrategy(
        cluster_environment=environments.LightningEnvironment(),
        precision_plugin=plugins.HalfPrecision("bf16-true"),
    )
    assert (strategy.cluster_environment, strategy.precision_plugin) == ("single", "bf16-true")
    assert pickle.loads(pickle.dumps(plugins.MixedPrecision("16-mixed", "cuda"))) == "16-mixed"


def test_environments_say_whether_they_are_this_ones(monkeypatch: Any) -> None:
    assert not environments.TorchElasticEnvironment.detect()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "GROUP_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert environments.TorchElasticEnvironment.detect()


def test_plugins_that_would_not_be_called_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="Own derives from Lightning's MixedPrecision, which is a name alone here"
    ):

        class Own(plugins.MixedPrecision):
            """Its methods would never be called."""

    with pytest.raises(ConfigError, match=r"derive from stratagem\.Environment"):

        class Cluster(environments.ClusterEnvironment):
            """Its ranks would never be asked for."""

    with pytest.raises(ConfigError, match=r"derive from stratagem\.Checkpointer"):

        class Writer(plugins.CheckpointIO):
            """It would write nothing."""

    for made, words in (
        (lambda: plugins.MixedPrecision("16", "cuda"), "must be one of 16-mixed, bf16-mixed"),
        (lambda: plugins.MixedPrecision("16-mixed", "cuda", object()), "takes no scaler"),
        (lambda: plugins.CheckpointIO(), "is a base class alone"),
        (
            lambda: L.Trainer(precision="64-true", plugins=plugins.HalfPrecision(), **QUIET),
            "give one of them",
        ),
        (lambda: L.Trainer(plugins=[DDPStrategy()], **QUIET), "has a DDPStrategy: pass it as strategy=…"),
        (lambda: plugins.AsyncCheckpointIO(5), "AsyncCheckpointIO got a int"),
    ):
        with pytest.raises(ConfigError, match=words):
            made()


def test_names_of_strategies_and_accelerators() -> None:
    assert "ddp" in StrategyRegistry
    assert {"ddp", "fsdp", "deepspeed_stage_2"} <= set(StrategyRegistry.available_strategies())
    assert isinstance(StrategyRegistry.get("ddp_find_unused_parameters_true"), DDPStrategy)
    assert "cpu" in AcceleratorRegistry.available_accelerators()

    @StrategyRegistry.register("own_ddp", description="of this program", find_unused_parameters=True)
    class Own(DDPStrategy):
        """A program's."""

    try:
        chosen = L.Trainer(strategy="own_ddp", **QUIET).config.strategy
        assert type(chosen) is Own
        with pytest.raises(ConfigError, match="there is a strategy 'own_ddp' already"):
            StrategyRegistry.register("own_ddp", Own)
    finally:
        StrategyRegistry.remove("own_ddp")
    with pytest.raises(StratagemError, match="no strategy is called 'own_ddp'"):
        StrategyRegistry.get("own_ddp")
    with pytest.raises(ConfigError, match="installed ones stay"):
        StrategyRegistry.remove("ddp")
    with pytest.raises(ConfigError, match="offer it as a plugin"):
        AcceleratorRegistry.register("own", object)
    for name in ("hivemind", "colossalai"):
        with pytest.raises(ConfigError, match=f"there is no strategy '{name}': "):
            L.Trainer(strategy=name, **QUIET)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert self.trainer.strategy.num_processes == 1
        return self.net(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_spawned_processes(tmp_path: Path) -> None:
    strategy = DDPSpawnStrategy(find_unused_parameters=False)
    assert strategy.start_method == "spawn"
    assert type(pickle.loads(pickle.dumps(strategy))) is DDPSpawnStrategy
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    trainer = L.Trainer(strategy=strategy, max_steps=1, **QUIET, **quiet)
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2))
    assert trainer.global_step == 1


def test_functions_that_libraries_import() -> None:
    from stratagem_lightning.pytorch import cli_lightning_logo
    from stratagem_lightning.pytorch.core.mixins import HyperparametersMixin
    from stratagem_lightning.pytorch.utilities.model_helpers import is_overridden
    from stratagem_lightning.pytorch.utilities.model_summary import summarize
    from stratagem_lightning.pytorch.utilities.parsing import get_init_args
    from stratagem_lightning.pytorch.utilities.rank_zero import WarningCache, rank_prefixed_message

    class Data(HyperparametersMixin):
        def __init__(self, size: int, *, depth: int = 2, **more: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            frame = inspect.currentframe()
            assert frame is not None
            self.found = get_init_args(frame)

    made = Data(3, x=1)
    assert dict(made.hparams)["size"] == 3
    assert made.found == {"size": 3, "depth": 2, "x": 1}
    assert is_overridden("training_step", Net())
    assert not is_overridden("validation_step", Net())
    with pytest.raises(ValueError, match="has no method 'nothing'"):
        is_overridden("nothing", Net())
    summary = summarize(Net(), max_depth=-1)
    assert (summary.total_parameters, summary.trainable_parameters, summary.layer_names) == (3, 3, ["net"])
    assert "3 trainable parameters" in str(summary)
    cli_lightning_logo()
    assert rank_prefixed_message("so", 1) == "[rank: 1] so"
    cache = WarningCache()
    with pytest.warns(UserWarning, match="once"):
        cache.warn("once")
    cache.warn("once")
