"""Lightning's former strategies that spawn their processes."""

from __future__ import annotations

from typing import Any

from stratagem.sdk.lazy import import_from

_HOMES = {
    "DDPSpawnStrategy": ("stratagem_ddp", "DDPStrategy"),
    "DDPSpawnShardedStrategy": ("stratagem_sharded", "DDPShardedStrategy"),
}


def __getattr__(name: str) -> Any:
    # A class is created at its first use, because its base's distribution may not be installed.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = import_from(*_HOMES[name])

    def init(self: Any, *args: Any, start_method: str = "spawn", **kwargs: Any) -> None:
        base.__init__(self, *args, start_method=start_method, **kwargs)

    body = {
        "__init__": init,
        "__module__": __name__,
        "__doc__": f"{base.__name__} with spawned processes.",
    }
    globals()[name] = kind = type(name, (base,), body)
    return kind
