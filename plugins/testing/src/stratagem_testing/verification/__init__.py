"""`verify`: whether a strategy trains the user's own module as one process does. docs/guides/verify.md."""
