"""Units that everything is told in."""

GIB = 1 << 30
"""Bytes of a gibibyte."""
NS_PER_MS = 1e6
"""Nanoseconds of a millisecond."""
MIB = 1 << 20
"""Bytes of a mebibyte."""
