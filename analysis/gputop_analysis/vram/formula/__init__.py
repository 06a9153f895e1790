"""The formula tier: memory from the dimensions of a transformer, without torch and
without a trace.
"""

from __future__ import annotations

from gputop_analysis.vram.formula.peak import peak, peak_bytes, peak_sizes

__all__ = ["peak", "peak_bytes", "peak_sizes"]
