"""Workloads besides plain training: presets of plain settings, RLHF's iteration, and serving a
model.
"""
