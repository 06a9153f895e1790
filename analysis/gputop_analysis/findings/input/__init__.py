"""Checks of the input pipeline."""
