"""Checks of hangs and crashes."""
