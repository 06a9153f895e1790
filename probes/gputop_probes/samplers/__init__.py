"""Samplers of what runs beside the steps: processes, host, GPUs. Each packs records; only the
recorder writes.
"""
