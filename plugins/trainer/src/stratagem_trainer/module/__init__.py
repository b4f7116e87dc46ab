"""`Module`, the base class of users' modules, with its hooks and hyperparameters."""
