"""A plugin as it was written for plugin API 1. Nothing in this folder is edited: later versions must run it."""
