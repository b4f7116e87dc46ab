"""A plugin as it was written for plugin API 1. From the first release on, no one edits it: later versions must run it."""
