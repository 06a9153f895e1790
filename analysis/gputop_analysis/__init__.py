"""What is concluded: pure functions over a run record. No UI, no torch, no I/O beyond packaged
data.
"""
