"""Former place of `stratagem_sharding.wrap_policy`; it goes with the next plugin API."""

from stratagem.names.deprecation import replaced_names

__all__: list[str] = []

__getattr__ = replaced_names(__name__)
