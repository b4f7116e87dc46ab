"""Counts which planted faults the kit catches."""
