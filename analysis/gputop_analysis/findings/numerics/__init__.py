"""Checks of losses, gradients and schedules."""
