"""Published memory measurements, row by row, as setups and what was measured."""

from vram_cases.row import Case, read

__all__ = ["Case", "read"]
