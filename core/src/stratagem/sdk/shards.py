"""Of parameters that ranks share out: in which ways, and how to tell whether copies are equal."""

from stratagem.strategies.cuts import CUTS, Cut
from stratagem.strategies.fingerprint import fingerprint, number_of

__all__ = ["CUTS", "Cut", "fingerprint", "number_of"]
