"""A few real training steps of a setup, measured."""
