"""Operators on fake tensors that take the way, and know the values, which they would on CUDA."""
