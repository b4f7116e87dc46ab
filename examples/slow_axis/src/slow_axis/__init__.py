"""An axis whose ranks step independently and average their parameters every few steps."""
