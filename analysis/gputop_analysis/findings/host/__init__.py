"""Checks of host and Python: what keeps the GPU waiting."""
