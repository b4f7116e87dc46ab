"""A distribution's declarations of its components, without importing torch or a vendor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, get_args

from stratagem.errors import BrokenPluginError
from stratagem.plugin.origin import Origin

API_VERSION = 1
"""Version of the plugin API: the hooks, their requests and the protocols of their results."""

Kind = Literal[
    "strategy",
    "axis",
    "accelerator",
    "precision",
    "checkpoint",
    "environment",
    "launcher",
    "extension",
    "logger",
    "place",
    "model",
    "data",
]
"""Kinds of components. An "axis" is a parallelism that is composed with others. A "model" or "data" makes a module
or data from a text, and its name is the text's scheme."""
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order of listings."""

FEATURES: Mapping[str, str] = {
    "several_optimizers": "more than one optimizer",
    "manual_backward": "manual optimization: the module calls backward and step itself",
    "optimizer_hooks": "optimizer_step, optimizer_zero_grad or configure_gradient_clipping of the module's own",
    "closure": "an optimizer that evaluates the loss several times per step, such as LBFGS",
    "norm_clipping": "clipping gradients by norm",
    "value_clipping": "clipping gradients by value",
    "changes_between_steps": "frozen parameters, values, optimizer groups or accumulation that change between steps",
    "sparse_gradients": "sparse gradients, as of nn.Embedding(sparse=True)",
    "resharding": "loading a checkpoint written at another world size",
    "collective_forward": "every forward is a collective, so that ranks must run equally many",
    "several_nodes": "more than one node",
    "elastic": "a number of nodes that changes while it runs",
    "several_devices": "several devices in one process",
    "whole_optimizer": "an optimizer that needs whole tensors, or all gradients at once",
}
"""Allowed names in `Capabilities.features`, with descriptions for messages."""


@dataclass(frozen=True)
class Capabilities:
    """What a component can do; checked before anything is launched."""

    accelerators: tuple[str, ...] = ("*",)
    """For a strategy or a precision: names of supported accelerators. "*" matches any name."""
    precisions: tuple[str, ...] = ("*",)
    """Names of supported precisions. "*" matches any name, and "float8*" any name with this prefix."""
    processes: Literal["per-device", "per-node", "one"] = "one"
    """For a strategy: how many processes it needs."""
    start_methods: tuple[str, ...] = ("forkserver", "spawn", "popen", "fork")
    """For a strategy: start methods that it supports."""
    features: frozenset[str] = frozenset()
    """Names from `FEATURES` that it has."""
    strategies: tuple[str, ...] = ("*",)
    """For an accelerator: names of the strategies that can use its devices. "*" matches any name."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.features) - set(FEATURES))
        if unknown:
            raise ValueError(f"unknown features {unknown}; allowed are {sorted(FEATURES)}")


@dataclass(frozen=True)
class Component:
    """One strategy, accelerator or other component that a distribution offers.

    A record is cheap: `target` is only imported once the component has been selected.
    """

    kind: Kind
    """Its kind, a name from `KINDS`."""
    name: str
    """The name that users write, as in `--strategy NAME`, or NAME:TEXT for a "model" or "data"."""
    target: str
    """Its class, as "package.module:Class". For a "model" or "data", the class's first argument is the text."""
    summary: str
    """One line for `stratagem strategies` and its siblings."""
    aliases: tuple[str, ...] = ()
    """Other names for it."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names that stand for it with keyword values: ddp_spawn is ddp with start_method="spawn"."""
    capabilities: Capabilities = Capabilities()
    """What it can do. The conformance kit tests declared capabilities; users get an error for all others."""
    priority: int = 0
    """Among components that can run here, "auto" takes the one with the highest priority."""
    automatic: bool = True
    """For an accelerator: whether "auto" may take it. A device for tests is used only by name."""
    api_version: int = API_VERSION
    """The `API_VERSION` for which it was written. A component for a newer version than the core's is refused."""
    requires: tuple[str, ...] = ()
    """Modules that must be importable for it to run, such as ("deepspeed",)."""
    install_hint: str = ""
    """The command to type if a module of `requires` is missing."""
    composes_axes: bool = False
    """For a strategy: whether expressions of axes, such as shard=2+tensor=2, select it. Its constructor gets them as
    `axes`, each an `AxisChoice`."""
    launcher_variables: tuple[str, ...] = ()
    """For an environment: its launcher's variables that show that there are several processes, such as MPI's size."""
    preload: tuple[str, ...] = ()
    """Modules that workers import in addition to that of `target`. A fork server imports them once per node."""
    conformance: str = ""
    """Its subject for `stratagem conformance`, as "package.module:SUBJECT", which may also be a mapping with subjects
    for its own name and some presets. If empty, the kit makes a subject from the name."""
    origin: Origin = field(default=Origin("nowhere", "0", ""), compare=False)
    """The distribution that offers it; the catalogue sets it."""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Keyword values of the preset with whose name it was looked up; the catalogue sets it."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"component {self.name!r} has kind {self.kind!r}; allowed are {list(KINDS)}")
        if type(self.api_version) is not int or self.api_version < 1:
            raise ValueError(
                f"component {self.name!r} has api_version={self.api_version!r}: write the number of the plugin API "
                f"that it was written for, as {API_VERSION}"
            )

    def names(self) -> tuple[str, ...]:
        """Return all its names: its own, its aliases, its presets."""
        return (self.name, *self.aliases, *self.presets)

    def modules(self) -> tuple[str, ...]:
        """Return the modules that a worker imports for it."""
        return (self.target.partition(":")[0], *self.preload)

    def missing(self) -> list[str]:
        """Return the modules of `requires` that can't be imported here."""
        return [module for module in self.requires if not _is_installed(module)]

    def refuse_missing(self) -> None:
        """Refuse a component whose library is missing.

        Raises:
            BrokenPluginError: names the library, and how to install it.
        """
        if missing := self.missing():
            hint = self.install_hint or f"pip install {' '.join(missing)}"
            raise BrokenPluginError(
                f"{self.kind} {self.name!r} of {self.origin} needs {', '.join(missing)}, which isn't "
                f"installed: {hint}"
            )

    def load(self) -> Any:
        """Import and return the object that `target` names.

        Raises:
            BrokenPluginError: a library is missing, or the import failed; the original error is the cause.
        """
        self.refuse_missing()
        try:
            return imported(self.target)
        except Exception as error:
            hint = f"; {self.install_hint}" if self.install_hint else ""
            raise BrokenPluginError(
                f"{self.kind} {self.name!r} of {self.origin} can't be loaded: {type(error).__name__}: {error}{hint}"
            ) from error


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def imported(target: str) -> Any:
    """Import the object that "package.module:name" names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True)
class Availability:
    """Whether a component can run on this machine, and why."""

    ok: bool
    """Whether it can."""
    reason: str
    """The reason, such as "2 devices" or "no driver"."""
