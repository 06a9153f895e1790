"""Links between the GPUs of a node: read from `nvidia-smi topo -m`, from a probe, or from a
preset.
"""
