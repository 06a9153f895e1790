"""The event log: every storage that lives while the tracker is on, and where in the model it
belongs.
"""
