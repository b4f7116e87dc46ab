"""Former place of `stratagem_sharding.wrap_policy`; it goes with the next plugin API."""

from stratagem.names.deprecation import replaced_names
from stratagem.names.offered import MOVED

__all__: list[str] = []

__getattr__ = replaced_names(__name__, MOVED[__name__])
