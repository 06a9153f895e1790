"""What autograd's graphs tell: nodes, leaves, layers, operations."""
