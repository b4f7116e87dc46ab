"""What holds for every strategy: parameters keep what the user gave them, and copies stay equal."""

from __future__ import annotations

from stratagem.strategies.parameter_ledger import ParameterLedger
from stratagem.strategies.replica_guard import ReplicaGuard

__all__ = ["ParameterLedger", "ReplicaGuard"]
