"""Stands for Lightning where `python -m stratagem_lightning` runs a program."""

from stratagem_lightning.redirect import take_place

take_place(__name__)
