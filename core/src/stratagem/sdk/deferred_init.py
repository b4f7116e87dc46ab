"""Former place of `stratagem_sharding.deferred_init`; it goes with the next plugin API."""

from stratagem.plugin.deprecation import replaced_names
from stratagem.plugin.offered import MOVED

__all__: list[str] = []

__getattr__ = replaced_names(__name__, MOVED[__name__])
