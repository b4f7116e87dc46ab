"""Detect hanging ranks by their heartbeats, and report where they hang and which collectives they have missed."""
