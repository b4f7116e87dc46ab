"""Replaces Lightning in programs that run under `python -m stratagem_lightning`."""

from stratagem_lightning.redirect import take_place

take_place(__name__)
