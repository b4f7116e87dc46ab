"""For constructors of strategies: the options that they share, as `TypedDict`s for `**options`."""

from stratagem.strategies.options import ParallelOptions, ProcessGroupOptions, StrategyOptions, split_options

__all__ = ["ParallelOptions", "ProcessGroupOptions", "StrategyOptions", "split_options"]
