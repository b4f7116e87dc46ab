"""What runs in each rank while a run is recorded."""
