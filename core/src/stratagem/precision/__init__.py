"""Precisions: dtypes, autocast and loss scaling. Importing this package imports no torch."""

from __future__ import annotations

from stratagem.precision.base import Precision
from stratagem.precision.names import PRECISIONS, canonical_precision

__all__ = ["PRECISIONS", "Precision", "canonical_precision"]
