"""Links between a node's GPUs: read from `nvidia-smi topo -m`, from a probe, or from a preset."""
