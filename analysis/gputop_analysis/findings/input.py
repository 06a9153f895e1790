"""Findings of this family."""
