"""Checks of compute efficiency."""
