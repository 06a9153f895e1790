"""The panels, one a file: a pure ``draw`` and a small widget class around it."""
