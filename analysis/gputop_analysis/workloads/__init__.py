"""Workloads besides plain training: presets of settings, RLHF's iteration, serving."""
