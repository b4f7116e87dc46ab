"""Ranks that fall silent: noticed by their heartbeats, named with their place and what they are missing from."""
