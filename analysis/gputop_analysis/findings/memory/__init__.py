"""Checks of memory."""
