"""For strategies' constructors: the options that they share, as records for `**options`."""

from stratagem.strategies.options import ParallelOptions, ProcessGroupOptions, StrategyOptions, split_options

__all__ = ["ParallelOptions", "ProcessGroupOptions", "StrategyOptions", "split_options"]
