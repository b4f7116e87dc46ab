"""Ranks that fall silent: noticed by their heartbeats, and named with where they stand and what they are missing from."""
