"""The functions of `stratagem checkpoint`, without its output: verify, compare, inspect, prune."""
