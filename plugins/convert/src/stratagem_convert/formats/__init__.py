"""Formats of weights. Tensors are read by blocks of rows, so that a model is never in memory as a whole."""
