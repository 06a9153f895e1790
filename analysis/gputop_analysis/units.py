"""Units that everything is told in."""

GIB = 1 << 30
"""Bytes of a gibibyte."""
MIB = 1 << 20
"""Bytes of a mebibyte."""
