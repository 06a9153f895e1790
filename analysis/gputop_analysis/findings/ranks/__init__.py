"""Checks of ranks against each other, and of what they send."""
