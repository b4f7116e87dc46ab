"""`RunConfig`: all settings that decide which components a run has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Union

from stratagem.errors import ConfigError, short


def path_text(name: str, path: object) -> str:
    """Return a path as text.

    Args:
        name: of the argument, for the message.
        path: a str, or a `os.PathLike` of one.

    Raises:
        ConfigError: `path` is something else.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"{name}={short(path)} isn't a path: give a str or a pathlib.Path")
    return text


Devices = Union[int, Literal["auto"], "list[int]", "tuple[int, ...]"]
"""3, -1, "auto" or [0, 2]: see docs/guides/devices.md. A run also accepts the texts of flags and files, such as "3"
and "0,2". They aren't in this type, so that type checkers refuse `devices="two"`."""
LogLevel = Literal["debug", "info", "warning", "error"]


class RunOptions(TypedDict, total=False):
    """Fields of `RunConfig` that `Runtime` and `Trainer` take as further keywords."""

    strategy_options: Mapping[str, Any]
    node_rank: int | None
    rdzv_endpoint: str | None
    rdzv_backend: str
    rdzv_conf: str | None
    environment: str
    checkpoint: str
    checkpoint_options: Mapping[str, Any]
    max_restarts: int
    log_dir: str | None
    check_replicas_every: int
    log_level: LogLevel | None
    only_plugins: tuple[str, ...]
    without_plugins: tuple[str, ...]


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run. It is frozen, and picklable if the objects in it are.

    Workers assemble the run from it, so it never contains live objects.
    """

    # Components are `Any` here, because the modules of their classes import this one. `Runtime` and `Trainer` have
    # the types.
    strategy: Any = "auto"
    """A strategy's name, alias or preset, "distribution:name", or a strategy object."""
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword values for the strategy's constructor, if it is chosen by name."""
    accelerator: Any = "auto"
    devices: Devices | str = "auto"
    num_nodes: int | str = 1
    """Number of machines, or a minimum and a maximum such as "1:4": machines may then join and leave during the
    run."""
    node_rank: int | None = None
    """This node's rank, if you start `stratagem` once per node; None lets the rendezvous number the nodes."""
    rdzv_endpoint: str | None = None
    """"host:port" of the nodes' rendezvous; needed for more than one node."""
    rdzv_backend: str = "c10d"
    rdzv_conf: str | None = None
    """Settings of the rendezvous, by torch's names, such as "last_call_timeout=10,keep_alive_interval=2"."""
    precision: Any = "32-true"
    environment: str = "auto"
    checkpoint: str = "directory"
    checkpoint_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword values for the checkpointer's constructor, such as {"async": True}."""
    max_restarts: int = 0
    """How often a failed group of workers is restarted."""
    seed: int | None = None
    run_dir: str | None = None
    log_dir: str | None = None
    """Folder for the output of each worker, as `attempt_N/RANK/stdout.log` and `stderr.log`; None keeps none. For
    workers that the run starts itself."""
    check_replicas_every: int = 100
    """Compare the copies on all ranks every this many optimizer steps, in addition to the first steps and
    checkpoints; 0 never compares them."""
    log_level: LogLevel | None = None
    """Lowest level of the engines' log records that the terminal shows: "debug", "info",
    "warning" or "error"; None leaves it to each engine's strategy."""
    extensions: tuple[Any, ...] = ()
    """Objects with hook implementations, or names of installed extensions."""
    only_plugins: tuple[str, ...] = ()
    """Distributions to consider in addition to the core, with the distributions on which they depend; empty means
    all."""
    without_plugins: tuple[str, ...] = ()
    """Distributions to leave out."""

    def __post_init__(self) -> None:
        every = self.check_replicas_every
        if not isinstance(every, int) or isinstance(every, bool) or every < 0:
            raise ConfigError(
                f"check_replicas_every={short(every)} must be a number of optimizer steps, or 0 for no comparison"
            )
        for name, most in (("seed", 2**64 - 1), ("node_rank", 10**7), ("max_restarts", 10**7)):
            value = getattr(self, name)
            if value is None and name != "max_restarts":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise ConfigError(f"{name}={short(value)} must be a whole number from 0 to {most}")
