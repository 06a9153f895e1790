"""Checks of clocks, power, heat and errors of devices."""
