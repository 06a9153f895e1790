"""Published memory measurements, row by row, as setups and what was measured."""

from gputop_analysis.vram.cases.row import Case, read

__all__ = ["Case", "read"]
