"""How the GPUs of a node hang together: read from `nvidia-smi topo -m`, from a probe, or from a preset."""
