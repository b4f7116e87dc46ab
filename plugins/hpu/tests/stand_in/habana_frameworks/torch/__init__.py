"""Stands in for Intel's library, which has no wheel for this machine and no device here."""
