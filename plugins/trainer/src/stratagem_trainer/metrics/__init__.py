"""What modules log: collected, reduced over ranks, and handed to loggers."""
