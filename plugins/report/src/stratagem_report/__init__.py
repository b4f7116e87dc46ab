"""Records how each rank of a run spends its time, and shows it on one page."""
