"""For parameters that ranks divide: the ways to do it, and fingerprints that show whether copies are equal."""

from stratagem.strategies.cuts import CUTS, Cut
from stratagem.strategies.fingerprint import fingerprint, number_of

__all__ = ["CUTS", "Cut", "fingerprint", "number_of"]
