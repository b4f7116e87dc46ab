"""A trainer's batches: from passed loaders, from a `DataModule`, or from the module itself."""
