"""Former place of `stratagem_sharding.deferred_init`; it goes with the next plugin API."""

from stratagem.names.deprecation import replaced_names

__all__: list[str] = []

__getattr__ = replaced_names(__name__)
