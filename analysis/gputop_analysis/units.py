"""Units that everything is told in."""

GIB = 1 << 30
"""Bytes of a gibibyte."""
