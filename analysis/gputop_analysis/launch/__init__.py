"""From a strategy to what one types: commands and configuration files of the launchers, and their
checks.
"""
