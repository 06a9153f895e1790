"""Samplers of what runs beside steps: processes, host, GPUs. Only the recorder writes."""
