"""Faults that were chosen without looking at the kit, and which of them it catches."""
