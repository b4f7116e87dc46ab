"""The names that users import from `stratagem`: entry points in the group `stratagem.names`, see pyproject.toml."""
