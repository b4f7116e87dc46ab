"""`StrategyRegistry` and `AcceleratorRegistry`: names of installed components, and strategies of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import load_catalogue
from stratagem_lightning.absent import GONE


class _Registry:
    """The names of one kind of component, installed or added by the program."""

    kind: Any

    def __init__(self) -> None:
        self._added: dict[str, dict[str, Any]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def keys(self) -> list[str]:
        """The names."""
        return self._names()

    def get(self, name: str, default: Any = None) -> Any:
        """Return an object of that name.

        Raises:
            UnknownNameError: the name is unknown, and no default is given.
        """
        if name in self._added:
            added = self._added[name]
            return added[self.kind](**added["init_params"])
        if default is not None and name not in self:
            return default
        found = load_catalogue().find(self.kind, name)
        return found.load()(**found.options)

    def _names(self) -> list[str]:
        return list(dict.fromkeys((*load_catalogue().names(self.kind), *self._added)))


class _Strategies(_Registry):
    kind = "strategy"

    def register(
        self,
        name: str,
        strategy: Callable[..., Any] | None = None,
        description: str | None = None,
        override: bool = False,
        **init_params: Any,
    ) -> Any:
        """Add a strategy for `Trainer(strategy=name)` in this program. Without a class, returns a decorator.

        Raises:
            ConfigError: the name exists already.
        """
        if name in self and not override:
            raise ConfigError(f"there is a strategy {name!r} already: give another name, or override=True")

        def add(kind: Callable[..., Any]) -> Callable[..., Any]:
            self._added[name] = {
                "strategy": kind,
                "strategy_name": name,
                "description": description or "",
                "init_params": init_params,
            }
            return kind

        return add if strategy is None else add(strategy)

    def remove(self, name: str) -> None:
        """Remove a strategy that the program has added.

        Raises:
            ConfigError: the program has added no strategy of that name.
        """
        if self._added.pop(name, None) is None:
            raise ConfigError(f"this program has registered no strategy {name!r}: installed ones stay")

    def available_strategies(self) -> list[str]:
        """The names."""
        return self._names()

    def resolved(self, strategy: Any) -> Any:
        """Return a trainer's strategy; if the program has registered its name, the registered object.

        Raises:
            ConfigError: it is a strategy that Lightning once had and that doesn't exist here.
        """
        if isinstance(strategy, str) and strategy in GONE and strategy not in self:
            raise ConfigError(f"there is no strategy {strategy!r}: {GONE[strategy]}")
        return self.get(strategy) if isinstance(strategy, str) and strategy in self._added else strategy


class _Accelerators(_Registry):
    kind = "accelerator"

    def register(self, name: str, *_: Any, **__: Any) -> Any:
        """Refuse: accelerators come from installed distributions.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"accelerator {name!r} can't be registered by a program: offer it as a plugin, docs/writing-a-plugin.md"
        )

    def available_accelerators(self) -> list[str]:
        """The names."""
        return self._names()


StrategyRegistry = _Strategies()
AcceleratorRegistry = _Accelerators()
