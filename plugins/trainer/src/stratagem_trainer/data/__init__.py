"""Where a trainer's batches come from: one loader or several, passed, or a `DataModule`'s, or the module's own."""
