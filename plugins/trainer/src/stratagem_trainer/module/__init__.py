"""What users derive from: `Module`, its hooks and its hyperparameters."""
