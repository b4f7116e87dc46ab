"""Checks for every strategy: parameters keep the user's settings, and copies on ranks stay equal."""

from __future__ import annotations

from stratagem.strategies.parameter_ledger import ParameterLedger
from stratagem.strategies.replica_guard import ReplicaGuard

__all__ = ["ParameterLedger", "ReplicaGuard"]
