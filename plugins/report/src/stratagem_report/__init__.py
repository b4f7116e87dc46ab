"""Records where a run's time goes, per rank, and shows it on one page."""
