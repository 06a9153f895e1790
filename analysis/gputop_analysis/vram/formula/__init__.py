"""The formula tier: memory by a transformer's dimensions, without torch and trace."""

from __future__ import annotations

from gputop_analysis.vram.formula.peak import peak, peak_bytes, peak_sizes

__all__ = ["peak", "peak_bytes", "peak_sizes"]
