"""Formats that weights are kept in: read by rows from wherever they lie, so that no model is ever held whole."""
