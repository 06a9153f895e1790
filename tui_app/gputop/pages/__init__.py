"""Contents of the screens above the main one, one a file: a pure ``draw`` and a small widget class
around it.
"""
