"""Classes of `lightning.pytorch.plugins` that stand for the name of a precision or an environment here.

Their objects are such names. They go into `Trainer(plugins=[…])`, `precision_plugin=` and `cluster_environment=`.
Overridden methods would never be called, so deriving from these classes raises an error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from stratagem import Strategy
from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import load_catalogue


class RunPart(str):
    """A name by which a run selects a component.

    Attributes:
        argument: the trainer's argument that gets the name.
        settings: further arguments of the trainer.
    """

    argument = ""
    instead = ""
    """What to derive from here, for the message to programs that derive from the class."""
    settings: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != __name__:
            base = cls.__mro__[1].__name__
            raise ConfigError(
                f"{cls.__qualname__} derives from Lightning's {base}, which is a name alone here: {cls.instead}"
            )

    def __new__(cls, name: str, **settings: Any) -> RunPart:
        made = super().__new__(cls, name)
        made.settings = settings
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # a worker needs only the name


class Precision(RunPart):
    """Full precision: "32-true"."""

    argument = "precision"
    instead = "derive from stratagem.Precision, and pass it as precision=…: docs/guides/precision.md"

    def __new__(cls) -> Any:
        return super().__new__(cls, "32-true")


class MixedPrecision(Precision):
    """`torch.autocast`: "16-mixed" or "bf16-mixed"."""

    def __new__(cls, precision: str, device: str = "", scaler: Any = None) -> Any:
        return RunPart.__new__(cls, _name_of(cls, precision, ("16-mixed", "bf16-mixed"), scaler))


class DoublePrecision(Precision):
    """Double precision: "64-true"."""

    def __new__(cls) -> Any:
        return RunPart.__new__(cls, "64-true")


class HalfPrecision(Precision):
    """Weights in 16 bits: "16-true" or "bf16-true"."""

    def __new__(cls, precision: str = "16-true") -> Any:
        return RunPart.__new__(cls, _name_of(cls, precision, ("16-true", "bf16-true")))


_ALL = ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")


class FSDPPrecision(Precision):
    """A precision for fsdp. All strategies accept the same names here."""

    def __new__(cls, precision: str, scaler: Any = None) -> Any:
        return RunPart.__new__(cls, _name_of(cls, precision, _ALL, scaler))


class DeepSpeedPrecision(Precision):
    """A precision for deepspeed. All strategies accept the same names here."""

    def __new__(cls, precision: str) -> Any:
        return RunPart.__new__(cls, _name_of(cls, precision, _ALL))


class XLAPrecision(Precision):
    """A precision for XLA devices. All strategies accept the same names here."""

    def __new__(cls, precision: str = "32-true") -> Any:
        return RunPart.__new__(cls, _name_of(cls, precision, ("32-true", "16-true", "bf16-true")))


def _name_of(kind: type, precision: str, allowed: Iterable[str], scaler: Any = None) -> str:
    if precision not in (*allowed,):
        raise ConfigError(f"{kind.__name__} got {precision!r}: must be one of {', '.join(allowed)}")
    if scaler is not None:
        raise ConfigError(
            f"{kind.__name__} takes no scaler: the run has its own; derive from stratagem.Precision for another one"
        )
    return precision


class ClusterEnvironment(RunPart):
    """Base class of the environments."""

    argument = "environment"
    instead = (
        "derive from stratagem.Environment, and pass it as cluster_environment=… of a strategy: "
        "docs/guides/environments.md"
    )
    environment = ""

    def __new__(cls, **settings: Any) -> Any:
        if not cls.environment:
            raise ConfigError(f"{cls.__name__} is a base class alone: {cls.instead}")
        return super().__new__(cls, cls.environment, **settings)

    @classmethod
    def detect(cls) -> bool:
        """Whether this process was started in such an environment."""
        found = load_catalogue().find("environment", cls.environment).load()
        return found.detect(os.environ) is not None


class LightningEnvironment(ClusterEnvironment):
    """Processes that the run starts itself, regardless of environment variables."""

    environment = "single"


class TorchElasticEnvironment(ClusterEnvironment):
    """Processes started by torchrun."""

    environment = "torchelastic"


class KubeflowEnvironment(ClusterEnvironment):
    """Processes of a PyTorchJob."""

    environment = "kubeflow"


class LSFEnvironment(ClusterEnvironment):
    """Processes started by jsrun."""

    environment = "lsf"


class MPIEnvironment(ClusterEnvironment):
    """Processes started by mpirun."""

    environment = "mpi"


class SLURMEnvironment(ClusterEnvironment):
    """Processes started by srun.

    Args:
        auto_requeue: requeue the job if a time limit or the signal has stopped the run.
        requeue_signal: signal on which a fit saves a checkpoint and ends.
    """

    environment = "slurm"

    def __new__(cls, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None) -> Any:
        settings: dict[str, Any] = {"requeue": auto_requeue}
        if requeue_signal is not None:
            settings["stop_signals"] = signal.Signals(requeue_signal).name
        return super().__new__(cls, **settings)


class XLAEnvironment(ClusterEnvironment):
    """Processes of an XLA run, which the strategy starts."""

    environment = "auto"

    @classmethod
    def detect(cls) -> bool:
        """Whether torch_xla is installed."""
        from importlib.util import find_spec

        return find_spec("torch_xla") is not None


class LayerSync(RunPart):
    """Base class of TorchSyncBatchNorm."""

    argument = "sync_batchnorm"
    instead = "pass sync_batchnorm=True, or convert layers in configure_model"

    def __new__(cls) -> Any:
        raise ConfigError(f"{cls.__name__} is a base class alone: {cls.instead}")


class TorchSyncBatchNorm(LayerSync):
    """The same as `sync_batchnorm=True`."""

    def __new__(cls) -> Any:
        return RunPart.__new__(cls, "", sync_batchnorm=True)


class CheckpointIO(RunPart):
    """Base class of plugins that write checkpoints. A `Checkpointer` writes them here."""

    argument = "checkpoint_io"
    instead = (
        "checkpoints are written by a Checkpointer: derive from stratagem.Checkpointer, and pass it as "
        "checkpoint_io=… of a strategy: docs/guides/checkpoints.md"
    )

    def __new__(cls) -> Any:
        raise ConfigError(f"{cls.__name__} is a base class alone: {cls.instead}")

    def __call__(self, *_: Any) -> Any:
        """Raise an error: it can't be a strategy's `checkpoint_io`."""
        raise ConfigError(f"{type(self).__name__} goes into Trainer(plugins=[…]), not into checkpoint_io=…")


class TorchCheckpointIO(CheckpointIO):
    """The default: the run's Checkpointer writes each checkpoint as a folder."""

    def __new__(cls) -> Any:
        return RunPart.__new__(cls, "")


class XLACheckpointIO(TorchCheckpointIO):
    """The default, also on XLA devices."""


class AsyncCheckpointIO(CheckpointIO):
    """Writes checkpoints while training continues, like `checkpoint.async`."""

    def __new__(cls, checkpoint_io: Any = None) -> Any:
        if checkpoint_io is not None and not isinstance(checkpoint_io, TorchCheckpointIO):
            raise ConfigError(
                f"AsyncCheckpointIO got a {type(checkpoint_io).__name__}: the run's Checkpointer writes"
            )
        return RunPart.__new__(cls, "", checkpoint_options={"async": True})


def take_parts(plugins: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the plugins that aren't of this module, and the arguments that those of this module stand for.

    Args:
        plugins: of `Trainer(plugins=…)` or `Fabric(plugins=…)`.
        given: arguments whose default is None or "auto", by name.

    Raises:
        ConfigError: two plugins set the same argument, or a plugin and an argument differ.
    """
    listed = plugins if isinstance(plugins, (list, tuple)) else [] if plugins is None else [plugins]
    found: dict[str, Any] = {}
    for each in listed:
        if isinstance(each, Strategy):
            raise ConfigError(f"plugins has a {type(each).__name__}: pass it as strategy=…")
    for part in (each for each in listed if isinstance(each, RunPart)):
        settings = {**part.settings, **({part.argument: str(part)} if part else {})}
        for name, value in settings.items():
            before = found.get(name, given.get(name))
            if before not in (None, "auto", False, value):
                raise ConfigError(
                    f"{name} is {before!r}, and {value!r} by {type(part).__name__}: give one of them"
                )
            found[name] = value
    return [each for each in listed if not isinstance(each, RunPart)], found
