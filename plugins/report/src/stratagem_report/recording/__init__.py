"""The part that runs in each rank while a run is recorded."""
