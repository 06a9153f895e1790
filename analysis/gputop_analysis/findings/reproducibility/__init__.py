"""Checks of what makes two runs differ."""
